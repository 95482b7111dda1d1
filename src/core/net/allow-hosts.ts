import { isIP } from 'node:net'
import { domainToASCII } from 'node:url'
import ipaddr from 'ipaddr.js'

type Address = ipaddr.IPv4 | ipaddr.IPv6

/**
 * Returns the address that a connection would reach, with IPv4-mapped and NAT64 forms unwrapped. Null for a host name.
 */
export function unwrapHostname(address: string): Address | null {
  const bare = address.split('%', 1)[0]
  if (!isIP(bare)) return null
  const parsed = ipaddr.parse(bare)
  if (!(parsed instanceof ipaddr.IPv6)) return parsed
  if (parsed.isIPv4MappedAddress()) return parsed.toIPv4Address()
  const nat64 = parsed.match(ipaddr.IPv6.parse('64:ff9b::'), 96)
  return nat64 ? new ipaddr.IPv4(parsed.toByteArray().slice(12)) : parsed
}

const isWithin = (address: Address, range: [Address, number]): boolean =>
  range[0].kind() === address.kind() && (address as ipaddr.IPv4).match(range as [ipaddr.IPv4, number])

/**
 * Public ranges that are not routed on the Internet but lead to services of the cloud in which the process runs, some
 * of which trust every internal request. Other clouds use link-local, private or shared (CGNAT) addresses.
 */
const CLOUD_INTERNAL = [
  // Azure: WireServer (configuration of the virtual machine, with secrets), DNS, health probes.
  '168.63.129.16/32',
  // Equinix Metal: metadata service, which identifies a server by its source address.
  '192.80.8.124/32',
  // IBM Cloud: infrastructure services (DNS, NTP, package mirrors), private service endpoints.
  '161.26.0.0/16',
  '166.8.0.0/14',
  // Google Cloud: restricted.googleapis.com and private.googleapis.com, where a network perimeter counts as a
  // credential.
  '199.36.153.4/30',
  '199.36.153.8/30',
  '2600:2d00:2:1000::/64',
  '2600:2d00:2:2000::/64',
].map(range => ipaddr.parseCIDR(range))

/** Whether an address is allocated for the Internet; for IPv6 that is 2000::/3 without its special ranges. */
export function isPublic(address: Address): boolean {
  if (address.range() !== 'unicast') return false
  if (CLOUD_INTERNAL.some(range => isWithin(address, range))) return false
  return !(address instanceof ipaddr.IPv6) || (address.parts[0] & 0xe000) === 0x2000
}

type AllowList = {
  allowsHost(hostname: string, port: number): boolean
  allowsAddress(address: Address, port: number): boolean
}

/**
 * Parses an allow-list. An entry with a port allows only that port; `*.suffix` does not allow the suffix itself.
 * @throws Error for an invalid entry
 */
export function parseAllowHosts(list: string): AllowList {
  const hosts: { name: string; suffix: boolean; port: number | null }[] = []
  const ranges: { range: [Address, number]; port: number | null }[] = []
  for (const raw of list.split(',')) {
    const entry = raw.trim().toLowerCase()
    if (entry === '') continue
    const invalid = () => new Error(`"${raw.trim()}" is not a host, host:port, *.suffix, IP or CIDR`)
    const [base, bits, ...rest] = entry.split('/')
    if (bits !== undefined) {
      const address = unwrapHostname(base)
      const width = isIP(base) === 6 ? 128 : 32
      const length = Number(bits)
      if (!address || rest.length > 0 || !/^\d+$/.test(bits) || length > width) throw invalid()
      const unwrappedBits = width === 128 && address.kind() === 'ipv4' ? length - 96 : length
      if (unwrappedBits < 0) throw invalid()
      ranges.push({ range: [address, unwrappedBits], port: null })
      continue
    }
    const [, host, portText] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(isIP(entry) === 6 ? `[${entry}]` : entry) ?? []
    if (!host) throw invalid()
    const port = portText === undefined ? null : Number(portText)
    if (port !== null && (port < 1 || port > 65_535)) throw invalid()
    const address = unwrapHostname(host.replace(/^\[|\]$/g, ''))
    if (address) {
      ranges.push({ range: [address, address.kind() === 'ipv6' ? 128 : 32], port })
      continue
    }
    const suffix = host.startsWith('*.')
    const name = domainToASCII(suffix ? host.slice(2) : host).replace(/\.$/, '')
    if (isIP(name) || !/^[a-z0-9_-]+(\.[a-z0-9_-]+)*$/.test(name)) throw invalid()
    hosts.push({ name, suffix, port })
  }
  return {
    allowsHost(hostname, port) {
      const name = hostname.replace(/\.$/, '')
      return hosts.some(
        entry =>
          (entry.port === null || entry.port === port) &&
          (entry.suffix ? name.endsWith(`.${entry.name}`) : name === entry.name),
      )
    },
    allowsAddress(address, port) {
      return ranges.some(entry => (entry.port === null || entry.port === port) && isWithin(address, entry.range))
    },
  }
}
