import ipaddr from 'ipaddr.js'

/**
 * Returns the sender to which limits by address apply. For IPv6 this is the /64 network, since its holder controls all
 * its addresses.
 */
export function networkOf(ip: string | null | undefined): string {
  if (!ip || !ipaddr.isValid(ip)) return ''
  const address = ipaddr.process(ip)
  return address.kind() === 'ipv4' ? address.toString() : address.toByteArray().slice(0, 8).join('.')
}
