#!/usr/bin/env python3
"""Writes the machines of this folder: hwloc XML, as `lstopo FILE.xml` would, of hosts that the tests do not have.

    dgx         2 packages, 4 NUMA nodes, 8 GPUs and 8 NICs in pairs behind 4 PCI switches, all GPUs on an NVSwitch; a slow console NIC
    cube        2 packages, 8 GPUs in a cube of NVLinks, each with 2 links to two others and 1 to two more; one NIC a switch
    asymmetric  2 packages with 6 and 2 cores; 3 GPUs and a NIC on one, 1 GPU and two NICs on the other, one of them down
    container   a cut of 3 cores out of 2 NUMA nodes, the bus hidden: NICs that lie nowhere
"""
import os


class Machine:
    def __init__(self, name):
        self.lines, self.gp, self.depth, self.gpus, self.links = [], 0, 0, [], ""
        self.name = name

    def line(self, text):
        self.lines.append("  " * self.depth + text)

    def open(self, kind, attributes, cpus=None, nodes=None):
        self.gp += 1
        sets = ""
        if cpus is not None:
            mask, node = "0x%08x" % sum(1 << c for c in cpus), "0x%08x" % sum(1 << n for n in nodes)
            sets = f' cpuset="{mask}" complete_cpuset="{mask}" nodeset="{node}" complete_nodeset="{node}"'
            if kind == "Machine":
                sets += f' allowed_cpuset="{mask}" allowed_nodeset="{node}"'
        self.line(f'<object type="{kind}"{sets} gp_index="{self.gp}"{" " if attributes else ""}{attributes}>')
        self.depth += 1
        return self.gp

    def close(self):
        self.depth -= 1
        self.line("</object>")

    def leaf(self, *arguments):
        self.open(*arguments)
        self.close()

    def info(self, name, value):
        self.line(f'<info name="{name}" value="{value}"/>')

    def cores(self, cores, node, l3=32):
        self.open("L3Cache", f'cache_size="{l3 << 20}" depth="3" cache_linesize="64" cache_associativity="16" cache_type="0"', cores, [node])
        for c in cores:
            self.open("Core", f'os_index="{c}"', [c], [node])
            self.leaf("PU", f'os_index="{c}"', [c], [node])
            self.close()
        self.close()

    def numa(self, node, cores):
        self.leaf("NUMANode", f'os_index="{node}" local_memory="{64 << 30}"', cores, [node])

    def host_bridge(self, bus, last):
        self.open("Bridge", f'bridge_type="0-1" depth="0" bridge_pci="0000:[{bus:02x}-{last:02x}]"')

    def switch(self, bus, last):
        self.open("Bridge", f'bridge_type="1-1" depth="1" bridge_pci="0000:[{bus + 1:02x}-{last:02x}]" '
                  f'pci_busid="0000:{bus:02x}:00.0" pci_type="0604 [10b5:9765] [10b5:9765] 01" pci_link_speed="31.5"')

    def gpu(self, bus, name):
        self.open("PCIDev", f'pci_busid="0000:{bus:02x}:00.0" pci_type="0302 [10de:20b0] [10de:134f] a1" pci_link_speed="31.5"')
        self.gpus.append(self.open("OSDev", f'name="{name}" subtype="NVML" osdev_type="1"'))
        self.close()
        self.close()

    def nic(self, bus, name, mbit, state=4, rdma=True):
        if bus is not None:
            self.open("PCIDev", f'pci_busid="0000:{bus:02x}:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00" pci_link_speed="31.5"')
        self.open("OSDev", f'name="{name}" osdev_type="{3 if rdma else 2}"')
        if rdma:
            self.info("Port1State", state)
        if mbit:
            self.info("LinkMbps", mbit)
        self.close()
        if bus is not None:
            self.close()

    def bandwidths(self, objects, values, hetero):
        """hwloc's NVLinkBandwidth, MB/s; hetero: the last object is the switch."""
        names = " ".join(("OSDev:" if i < len(self.gpus) else "PCIDev:") * hetero + str(o) for i, o in enumerate(objects)) + " "
        numbers = " ".join(map(str, values)) + " "
        kind = "distances2hetero" if hetero else "distances2"
        head = f'nbobjs="{len(objects)}" kind="{25 if hetero else 9}" name="NVLinkBandwidth"'
        if not hetero:
            head = f'type="OSDev" indexing="gp" ' + head
        self.links = (f'  <{kind} {head}>\n    <indexes length="{len(names)}">{names}</indexes>\n'
                      f'    <u64values length="{len(numbers)}">{numbers}</u64values>\n  </{kind}>\n')

    def write(self):
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, self.name + ".xml"), "w") as out:
            out.write('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n')
            out.write("\n".join(self.lines) + "\n" + self.links + "</topology>\n")


def dgx():
    m = Machine("dgx")
    m.open("Machine", 'os_index="0"', range(16), range(4))
    m.info("HostName", "dgx")
    switch = 0
    for package in range(2):
        cores = range(8 * package, 8 * package + 8)
        m.open("Package", f'os_index="{package}"', cores, [2 * package, 2 * package + 1])
        for node in (2 * package, 2 * package + 1):
            mine = range(4 * node, 4 * node + 4)
            m.open("Group", "", mine, [node])
            m.numa(node, mine)
            m.cores(mine, node)
            bus = 0x10 + 0x30 * node
            m.host_bridge(bus, bus + 0x1f)
            m.switch(bus, bus + 0x1f)
            for k in range(2):
                m.gpu(bus + 1 + k, f"nvml{2 * node + k}")
                m.nic(bus + 5 + k, f"mlx5_{2 * node + k}", 200000)
            m.close()
            if node == 0:
                m.nic(bus + 0x1f, "mlx5_8", 25000)
                m.nic(bus + 0x1e, "eno1", 1000, rdma=False)
            m.close()
            if node == 3:
                m.host_bridge(0xe0, 0xe1)
                switch = m.open("PCIDev", 'pci_busid="0000:e1:00.0" pci_type="0680 [10de:1af1] [10de:1af1] a1" '
                                'pci_link_speed="4.0" subtype="NVSwitch"')
                m.close()
                m.close()
            m.close()
        m.close()
    m.close()
    n = 9
    m.bandwidths(m.gpus + [switch], [300000 if (i == 8) != (j == 8) else 0 for i in range(n) for j in range(n)], True)
    m.write()


def cube():
    """Each GPU has 6 links to 4 others: the double ones are a ring through all."""
    m = Machine("cube")
    m.open("Machine", 'os_index="0"', range(8), range(2))
    for p in range(2):
        cores = range(4 * p, 4 * p + 4)
        m.open("Package", f'os_index="{p}"', cores, [p])
        m.numa(p, cores)
        m.cores(cores, p)
        for s in range(2):
            bus = 0x10 + 0x40 * p + 0x20 * s
            m.host_bridge(bus, bus + 0x1f)
            m.switch(bus, bus + 0x1f)
            for k in range(2):
                m.gpu(bus + 1 + k, f"nvml{4 * p + 2 * s + k}")
            m.nic(bus + 5, f"mlx5_{2 * p + s}", 100000)
            m.close()
            m.close()
        m.close()
    m.close()
    round_trip, links = (0, 3, 2, 1, 5, 6, 7, 4), {}
    for i, gpu in enumerate(round_trip):
        links[tuple(sorted((gpu, round_trip[i - 1])))] = 2
    for pair in ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)):
        links[pair] = 1
    m.bandwidths(m.gpus, [25000 * links.get((min(i, j), max(i, j)), 0) for i in range(8) for j in range(8)], False)
    m.write()


def asymmetric():
    m = Machine("asymmetric")
    m.open("Machine", 'os_index="0"', range(8), range(2))
    for p, cores in enumerate((range(6), range(6, 8))):
        m.open("Package", f'os_index="{p}"', cores, [p])
        m.numa(p, cores)
        m.cores(cores, p)
        bus = 0x10 + 0x40 * p
        m.host_bridge(bus, bus + 0x3f)
        for k in range(1 if p else 3):
            m.gpu(bus + 1 + k, f"nvml{3 * p + k}")
        m.nic(bus + 8, f"mlx5_{2 * p}", 100000)
        if p:
            m.nic(bus + 9, "mlx5_1", 100000, state=1)
        m.close()
        m.close()
    m.close()
    m.write()


def container():
    m = Machine("container")
    cores = [5, 9, 10]
    m.open("Machine", 'os_index="0"', cores, range(2))
    for node, mine in ((0, [5]), (1, [9, 10])):
        m.open("Package", f'os_index="{node}"', mine, [node])
        m.numa(node, mine)
        m.cores(mine, node)
        m.close()
    m.nic(None, "mlx5_0", None)
    m.nic(None, "mlx5_1", None)
    m.nic(None, "eth0", 10000, rdma=False)
    m.close()
    m.write()


for make in (dgx, cube, asymmetric, container):
    make()
