import { z } from 'zod'
import { derived, integer, optional, setting, settings, type Values } from '../base/setting.ts'

const headerPrefix = z
  .string()
  .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+-$/, 'must consist of header name characters and end in -')

export const apiSettings = settings(
  'process',
  {
    HEADER_PREFIX: setting(headerPrefix, 'X-Svc-', 'Prefix of outbound headers.'),
    TOOL_CONTEXT_HEADER_PREFIX: setting(
      derived(optional),
      '',
      'Prefix of tool context headers; default HEADER_PREFIX + `Context-`.',
    ),
    HTTP_JSON_LIMIT_BYTES: setting(integer(1024), '10485760', 'Maximum size of a JSON body; larger bodies get 413.'),
    HTTP_ANONYMOUS_BODY_TIMEOUT_MS: setting(
      integer(100),
      '30000',
      'Maximum time to receive a body without a bearer credential; then 408.',
    ),
    STREAM_PING_INTERVAL_MS: setting(
      integer(10),
      '15000',
      "Ping interval of event streams; each ping also checks the caller's permission again.",
    ),
    SYNC_WAIT_SECONDS: setting(integer(1), '300', 'Maximum time a request waits for long work.'),
  },
  (config, problem) => {
    config.TOOL_CONTEXT_HEADER_PREFIX ??= `${config.HEADER_PREFIX}Context-`
    if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/.test(config.TOOL_CONTEXT_HEADER_PREFIX))
      problem('TOOL_CONTEXT_HEADER_PREFIX', 'must consist of header name characters')
  },
)

declare module '../base/config.ts' {
  interface Config extends Values<typeof apiSettings> {}
}
