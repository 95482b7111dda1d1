import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { z } from 'zod'
import { derived, integer, optional, setting, settings, text, type Values } from './setting.ts'

const isHttpUrl = (text: string): boolean => /^https?:$/.test(URL.parse(text)?.protocol ?? '')

export const processSettings = settings(
  'process',
  {
    NODE_ENV: setting(
      z.enum(['development', 'test', 'production']) as z.ZodType<'development' | 'test' | 'production', string>,
      'development',
      'Environment; `production` refuses development defaults.',
    ),
    PORT: setting(integer(0, 65535), '5047', 'Port of the web process.'),
    HOST: setting(
      text,
      '0.0.0.0',
      'Address on which the web process listens; with `npm start` the default is 127.0.0.1.',
    ),
    BASE_URL: setting(derived(optional), '', 'Public URL of the deployment; default `http://localhost:PORT`.', {
      production: true,
    }),
    DOCS_BASE_URL: setting(derived(optional), '', 'URL of the reference pages; default `BASE_URL/docs`.'),
    LOG_LEVEL: setting(
      z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']) as z.ZodType<string, string>,
      'info',
      'Level of the JSON log.',
    ),
    SHUTDOWN_GRACE_MS: setting(integer(0), '30000', 'Time for work in flight to finish after SIGTERM.'),
    INSTANCE_ID: setting(
      derived(optional),
      process.env.HOSTNAME ?? '',
      'Name of the host in heartbeats and logs; default HOSTNAME.',
      { documented: '' },
    ),
  },
  (config, problem, env) => {
    config.baseUrlGiven = config.BASE_URL !== null && config.BASE_URL !== undefined
    config.BASE_URL = (config.BASE_URL ?? `http://localhost:${config.PORT}`).replace(/(?<!\/)\/+$/, '')
    if (config.baseUrlGiven && !isHttpUrl(config.BASE_URL)) problem('BASE_URL', 'must be an absolute http or https URL')
    config.DOCS_BASE_URL = (config.DOCS_BASE_URL ?? `${config.BASE_URL}/docs`).replace(/(?<!\/)\/+$/, '')
    if (env.DOCS_BASE_URL && !isHttpUrl(config.DOCS_BASE_URL))
      problem('DOCS_BASE_URL', 'must be an absolute http or https URL')
    config.INSTANCE_ID ??= `${hostname()}-${randomBytes(4).toString('hex')}`
  },
)

export const faultSettings = settings(
  'workers',
  {
    FAULT_POINTS: setting(
      optional,
      '',
      'Fault injection for tests: `point=kill` or `point=freeze:<ms>`; refused in production.',
    ),
  },
  (config, problem) => {
    if (config.production && config.FAULT_POINTS) problem('FAULT_POINTS', 'must not be set in production')
  },
)

declare module './config.ts' {
  interface Config extends Values<typeof processSettings>, Values<typeof faultSettings> {
    /** Whether BASE_URL is set, not derived from PORT. */
    baseUrlGiven: boolean
  }
}
