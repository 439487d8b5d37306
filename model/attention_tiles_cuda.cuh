/* attention_tiles_cuda: the two engines of attention: how a thread block holds a tile of scores and
 * what multiplies tiles. The kernels in ops_attention_cuda.cu are written once, over either.
 *
 *   scores (ROWS, COLS) = a (ROWS, D) · b (COLS, D)ᵀ      engine.scores(s, a, b)
 *   sums (ROWS, D) += scores · b (COLS, D)                engine.multiply(sums, s, b)
 *
 * A thread holds s[i][j] of place (row(i), score_col(j)) and sums[i][j] of (row(i), sum_col(j));
 * the LANES neighbouring threads that share a row find its maximum and its sum by shuffles. Tiles
 * lie in shared memory, heads narrower than D padded with zeros.
 *
 *   fma_engine<T, D>         float32 by plain FMA, in 64 threads: rows y, y + 8, … and columns
 *                            x, x + 8, … of thread (x, y); scores pass through shared memory
 *   mma_engine<T, D, COLS>   16 bits on tensor cores, in 4 warps of 16 rows each; scores stay in
 *                            registers (the result of one product is an operand of the next):
 *
 *        lane 4g + q holds     rows g and g + 8,  columns 8n + 2q and 8n + 2q + 1
 *
 * source: Dao, "FlashAttention-2", section 3.3.
 */
#ifndef MODEL_ATTENTION_TILES_CUDA_CUH
#define MODEL_ATTENTION_TILES_CUDA_CUH

#include "verbs/kernel_vector.cuh"

/* Rows of one head in memory: a matrix (count, cols) whose rows are `stride` elements apart. */
template <class T> struct head_matrix {
    T *at;
    size_t stride;
    int cols;
    bool vectors; /* every row begins at 16 bytes, cols are a multiple of 16 bytes */
};

/* V elements of a row from column c on, zeros beyond the last column. */
template <int V, class T>
__device__ __forceinline__ void load_padded(
    float (&x)[V], const T *row, int c, int cols, bool vectors)
{
    UNROLL
    for (int j = 0; j < V; j++) x[j] = 0.0f;
    if (vectors && c + V <= cols) {
        load(x, row + c);
        return;
    }
    UNROLL
    for (int j = 0; j < V; j++)
        if (c + j < cols) x[j] = to_float(row[c + j]);
}

template <int V, class T>
__device__ __forceinline__ void store_padded(
    T *row, const float (&x)[V], int c, int cols, bool vectors)
{
    if (vectors && c + V <= cols) {
        store(row + c, x);
        return;
    }
    UNROLL
    for (int j = 0; j < V; j++)
        if (c + j < cols) row[c + j] = from_float<T>(x[j]);
}

/* The same without a change of type. */
template <int V, class T>
__device__ __forceinline__ vector_word<T, V> copy_in(const T *row, int c, int cols, bool vectors)
{
    typedef vector_word<T, V> word;
    if (vectors && c + V <= cols) return *reinterpret_cast<const word *>(row + c);
    word x = {};
    UNROLL
    for (int j = 0; j < V; j++)
        if (c + j < cols) x.element[j] = row[c + j];
    return x;
}

template <int V, class T>
__device__ __forceinline__ void copy_out(
    T *row, const vector_word<T, V> &x, int c, int cols, bool vectors)
{
    if (vectors && c + V <= cols) {
        *reinterpret_cast<vector_word<T, V> *>(row + c) = x;
        return;
    }
    UNROLL
    for (int j = 0; j < V; j++)
        if (c + j < cols) row[c + j] = x.element[j];
}

/* ---- plain FMA ---- */

template <class T, int D> struct fma_engine {
    typedef T element;
    typedef float stored;
    static constexpr int THREADS = 64, LANES = 8, WIDTH = D;
    static constexpr int ROWS = 2048 / D, COLS = ROWS;
    static constexpr int S_ROWS = ROWS / 8, S_COLS = COLS / 8, SUM_COLS = D / 8;
    static constexpr int STRIDE = D + 4; /* so that eight rows begin in different banks */
    static constexpr int S_STRIDE = COLS + 1;

    float *staged; /* (ROWS, COLS) of scores */

    /* Elements of shared memory: of a tile of rows, of one of columns, of the engine itself. */
    static constexpr int ROW_TILE = ROWS * STRIDE, COL_TILE = COLS * STRIDE;
    static constexpr int OWN_TILE = (ROWS * S_STRIDE + 3) / 4 * 4;

    __device__ explicit fma_engine(float *own) : staged(own) {}

    __device__ static int row(int i) { return (int)threadIdx.x / 8 + 8 * i; }
    __device__ static int score_col(int j) { return (int)threadIdx.x % 8 + 8 * j; }
    __device__ static int sum_col(int j)
    {
        return 4 * ((int)threadIdx.x % 8) + 32 * (j / 4) + j % 4;
    }

    /* tile (rows, D) = rows of m from `first` on, those from `count` on zero. */
    __device__ static void fetch(
        float *tile, const head_matrix<const T> &m, int first, int count, int rows)
    {
        for (int i = (int)threadIdx.x; i < rows * (D / 4); i += THREADS) {
            int r = i / (D / 4), c = i % (D / 4) * 4;
            float x[4] = {};
            if (first + r < count)
                load_padded(x, m.at + (size_t)(first + r) * m.stride, c, m.cols, m.vectors);
            store(tile + r * STRIDE + c, x);
        }
    }

    /* Rows of m from `first` on = sums[i][j] · factor[i], by way of `tile`. */
    __device__ void put(const head_matrix<T> &m, int first, int count, float *tile,
        const float (&sums)[S_ROWS][SUM_COLS], const float (&factor)[S_ROWS]) const
    {
        __syncthreads();
        UNROLL
        for (int i = 0; i < S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < SUM_COLS; j++)
                tile[row(i) * STRIDE + sum_col(j)] = sums[i][j] * factor[i];
        }
        __syncthreads();
        constexpr int V = 16 / sizeof(T);
        for (int i = (int)threadIdx.x; i < ROWS * (D / V); i += THREADS) {
            int r = i / (D / V), c = i % (D / V) * V;
            float x[V];
            load(x, tile + r * STRIDE + c);
            if (first + r < count)
                store_padded(m.at + (size_t)(first + r) * m.stride, x, c, m.cols, m.vectors);
        }
    }

    __device__ void scores(float (&s)[S_ROWS][S_COLS], const float *a, const float *b) const
    {
        UNROLL
        for (int i = 0; i < S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < S_COLS; j++) s[i][j] = 0.0f;
        }
        for (int d = 0; d < D; d += 4) {
            float x[S_ROWS][4], y[4];
            UNROLL
            for (int i = 0; i < S_ROWS; i++) load(x[i], a + row(i) * STRIDE + d);
            UNROLL
            for (int j = 0; j < S_COLS; j++) {
                load(y, b + score_col(j) * STRIDE + d);
                UNROLL
                for (int i = 0; i < S_ROWS; i++) {
                    UNROLL
                    for (int e = 0; e < 4; e++) s[i][j] = multiply_add(x[i][e], y[e], s[i][j]);
                }
            }
        }
    }

    /* Rows belong to the lanes of one warp, so the staged scores are the warp's own. */
    __device__ void multiply(
        float (&sums)[S_ROWS][SUM_COLS], const float (&s)[S_ROWS][S_COLS], const float *b) const
    {
        __syncwarp();
        UNROLL
        for (int i = 0; i < S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < S_COLS; j++) staged[row(i) * S_STRIDE + score_col(j)] = s[i][j];
        }
        __syncwarp();
        for (int k = 0; k < COLS; k++) {
            UNROLL
            for (int j = 0; j < SUM_COLS; j += 4) {
                float y[4];
                load(y, b + k * STRIDE + sum_col(j));
                UNROLL
                for (int i = 0; i < S_ROWS; i++) {
                    UNROLL
                    for (int e = 0; e < 4; e++)
                        sums[i][j + e] =
                            multiply_add(staged[row(i) * S_STRIDE + k], y[e], sums[i][j + e]);
                }
            }
        }
    }
};

/* ---- tensor cores ---- */

/* low and high, rounded, as two elements of an operand. */
template <class T> __device__ __forceinline__ uint32_t matrix_pair(float low, float high)
{
    vector_word<T, 2> pair = {{from_float<T>(low), from_float<T>(high)}};
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <class T, int D, int STEP> struct mma_engine {
    typedef T element;
    typedef T stored;
    static constexpr int THREADS = 128, LANES = 4, WIDTH = D;
    static constexpr int ROWS = 64, COLS = STEP;
    static constexpr int S_ROWS = 2, S_COLS = COLS / 4, SUM_COLS = D / 4;

    static constexpr int ROW_TILE = ROWS * D, COL_TILE = COLS * D, OWN_TILE = 0;

    __device__ explicit mma_engine(T *) {}

    __device__ static int lane() { return (int)threadIdx.x % 32; }
    __device__ static int first_row() { return (int)threadIdx.x / 32 * 16; }
    __device__ static int row(int i) { return first_row() + lane() / 4 + 8 * i; }
    __device__ static int score_col(int j) { return 8 * (j / 2) + 2 * (lane() % 4) + j % 2; }
    __device__ static int sum_col(int j) { return score_col(j); }

    /* Where the 8 elements (16 bytes) from column 8·chunk on of row r lie. Eight rows of one chunk
     * are in different banks, and so are the chunks of one row. */
    template <class P> __device__ static P *at(P *tile, int r, int chunk)
    {
        return tile + r * D + (chunk ^ (r & 7)) * 8;
    }

    __device__ static void fetch(
        T *tile, const head_matrix<const T> &m, int first, int count, int rows)
    {
        for (int i = (int)threadIdx.x; i < rows * (D / 8); i += THREADS) {
            int r = i / (D / 8), chunk = i % (D / 8);
            vector_word<T, 8> x = {};
            if (first + r < count)
                x = copy_in<8>(m.at + (size_t)(first + r) * m.stride, chunk * 8, m.cols, m.vectors);
            *reinterpret_cast<vector_word<T, 8> *>(at(tile, r, chunk)) = x;
        }
    }

    __device__ void put(const head_matrix<T> &m, int first, int count, T *tile,
        const float (&sums)[S_ROWS][SUM_COLS], const float (&factor)[S_ROWS]) const
    {
        __syncthreads();
        UNROLL
        for (int i = 0; i < S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < SUM_COLS; j += 2) {
                float pair[2] = {sums[i][j] * factor[i], sums[i][j + 1] * factor[i]};
                store(at(tile, row(i), j / 2) + 2 * (lane() % 4), pair);
            }
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
            int r = i / (D / 8), chunk = i % (D / 8);
            if (first + r >= count) continue;
            auto x = *reinterpret_cast<const vector_word<T, 8> *>(at(tile, r, chunk));
            copy_out(m.at + (size_t)(first + r) * m.stride, x, chunk * 8, m.cols, m.vectors);
        }
    }

    /* Two neighbouring blocks of 8 columns, n and n + 1, of c += x · y; y holds both operands. */
    template <int N>
    __device__ static void product(
        float (&c)[2][N], int n, const uint32_t (&x)[4], const uint32_t (&y)[4])
    {
        UNROLL
        for (int h = 0; h < 2; h++) {
            int j = 2 * (n + h);
            float d[4] = {c[0][j], c[0][j + 1], c[1][j], c[1][j + 1]};
            const uint32_t operand[2] = {y[2 * h], y[2 * h + 1]};
            matrix_product(d, x, operand, d, T());
            c[0][j] = d[0], c[0][j + 1] = d[1], c[1][j] = d[2], c[1][j + 1] = d[3];
        }
    }

    __device__ void scores(float (&s)[S_ROWS][S_COLS], const T *a, const T *b) const
    {
        UNROLL
        for (int i = 0; i < S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < S_COLS; j++) s[i][j] = 0.0f;
        }
        int l = lane();
        UNROLL
        for (int k = 0; k < D / 8; k += 2) {
            uint32_t x[4], y[4]; /* 16 rows of a; 16 of b, as two operands */
            matrix_load(x, at(a, first_row() + l % 16, k + l / 16));
            UNROLL
            for (int n = 0; n < COLS / 8; n += 2) {
                matrix_load(y, at(b, 8 * n + l % 8 + l / 16 * 8, k + l / 8 % 2));
                product(s, n, x, y);
            }
        }
    }

    __device__ void multiply(
        float (&sums)[S_ROWS][SUM_COLS], const float (&s)[S_ROWS][S_COLS], const T *b) const
    {
        int l = lane();
        UNROLL
        for (int k = 0; k < COLS / 8; k += 2) {
            uint32_t x[4], y[4];
            x[0] = matrix_pair<T>(s[0][2 * k], s[0][2 * k + 1]);
            x[1] = matrix_pair<T>(s[1][2 * k], s[1][2 * k + 1]);
            x[2] = matrix_pair<T>(s[0][2 * k + 2], s[0][2 * k + 3]);
            x[3] = matrix_pair<T>(s[1][2 * k + 2], s[1][2 * k + 3]);
            UNROLL
            for (int n = 0; n < D / 8; n += 2) {
                matrix_load_transposed(y, at(b, 8 * k + l % 16, n + l / 16));
                product(sums, n, x, y);
            }
        }
    }
};

#endif
