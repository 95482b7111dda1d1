import { setting, settings, text, type Values } from '../base/setting.ts'

export const egressSettings = settings('egress', {
  EGRESS_ALLOW_HOSTS: setting(
    text,
    '',
    'Internal addresses that outbound requests may reach, comma-separated: host, host:port, *.suffix, IP or CIDR.',
  ),
  EGRESS_DNS_SERVERS: setting(
    text,
    '',
    'Name servers for addresses set by callers, comma-separated IP or IP:port; default the system resolver.',
  ),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof egressSettings> {}
}
