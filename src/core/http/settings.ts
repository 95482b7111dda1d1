import { z } from 'zod'
import { flag, integer, list, optional, setting, settings, type Values } from '../base/setting.ts'

const proxy = z
  .string()
  .regex(/^(true|false|\d+)$/, 'must be true, false or a number of hops')
  .transform(value => (value === 'true' ? true : value === 'false' ? false : Number(value)))

export const httpSettings = settings('process', {
  TRUST_PROXY: setting(proxy, 'false', 'Number of trusted proxies that set X-Forwarded-For; `true` trusts all.'),
  CORS_ALLOWED_ORIGINS: setting(list, '*', 'Allowed CORS origins, comma-separated; `*` allows any.'),
  HTTP_BODY_TIMEOUT_MS: setting(integer(100), '300000', 'Maximum time to receive a body; then 408.'),
  HTTP_ANONYMOUS_BODIES_BYTES: setting(
    integer(4_194_304),
    '67108864',
    'Memory per process for bodies without a bearer credential; a trigger, run or client address may use a quarter of it. Beyond that, 503.',
  ),
  HTTP_IDLE_TIMEOUT_MS: setting(
    integer(100),
    '120000',
    'Maximum pause of a client while it sends a body or reads a response.',
  ),
  HTTP_KEEP_ALIVE_MS: setting(
    integer(1000),
    '65000',
    'Idle timeout of connections; must exceed the idle timeout of the proxies in front.',
  ),
  ERROR_LOGS_ENABLED: setting(flag, 'true', 'Whether the cause of a 5xx is logged.'),
  METRICS_TOKEN: setting(optional, '', 'Bearer token of /metrics; if unset, only loopback addresses are allowed.', {
    secret: true,
  }),
})

export const uploadSettings = settings('content', {
  // Bytes staged an hour ago count as abandoned.
  UPLOAD_TIMEOUT_MS: setting(integer(100, 3_300_000), '3000000', 'Maximum time to receive an upload; then 408.'),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof httpSettings>, Values<typeof uploadSettings> {}
}
