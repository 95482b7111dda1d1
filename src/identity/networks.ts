import ipaddr from 'ipaddr.js'

/** What limits by address count as one sender. Of IPv6 the network of 64 bits: who has one of its addresses has all. */
export function networkOf(ip: string | null | undefined): string {
  if (!ip || !ipaddr.isValid(ip)) return ''
  const address = ipaddr.process(ip)
  return address.kind() === 'ipv4' ? address.toString() : address.toByteArray().slice(0, 8).join('.')
}
