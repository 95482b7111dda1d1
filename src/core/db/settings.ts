import { z } from 'zod'
import { derived, flag, integer, list, optional, setting, settings, text, type Values } from '../base/setting.ts'

export const databaseSettings = settings(
  'database',
  {
    DATABASE_URL: setting(derived(optional), '', 'PostgreSQL URL; takes precedence over the five settings below.', {
      secret: true,
    }),
    DATABASE_LISTEN_URL: setting(
      derived(optional),
      '',
      'URL of the PostgreSQL server if DATABASE_URL is a pooler; default DATABASE_URL.',
      { secret: true },
    ),
    DATABASE_HOST: setting(
      text,
      process.env.PGHOST ?? 'localhost',
      'Host, or directory of a Unix socket; default PGHOST.',
      {
        documented: 'localhost',
      },
    ),
    DATABASE_PORT: setting(integer(1, 65535), process.env.PGPORT ?? '5432', 'Port; default PGPORT.', {
      documented: '5432',
    }),
    DATABASE_NAME: setting(text, process.env.PGDATABASE ?? 'app', 'Database; default PGDATABASE.', {
      documented: 'app',
    }),
    DATABASE_USER: setting(text, process.env.PGUSER ?? 'app', 'User; default PGUSER.', { documented: 'app' }),
    DATABASE_PASSWORD: setting(optional, process.env.PGPASSWORD ?? '', 'Password; default PGPASSWORD.', {
      secret: true,
      documented: '',
    }),
    DATABASE_READ_URL: setting(
      derived(optional),
      '',
      'URL of a streaming replica of the server of DATABASE_URL, on which web processes run expensive reads.',
      { secret: true },
    ),
    READ_MAX_LAG_SECONDS: setting(integer(1, 86_400), '5', 'Lag of the replica above which it is not read.'),
    DATABASE_POOL_MAX: setting(
      integer(2),
      '20',
      'Maximum connections per process, to each cell and to the replica; a worker has one more, to maintain queues.',
    ),
    RETENTION_GRANULARITY: setting(
      z.enum(['day', 'month']),
      'day',
      'Whether events and audit entries are deleted row by row once they expire (`day`), or by whole months once the last row of a month expires (`month`).',
    ),
    CELLS: setting(flag, 'false', 'Whether projects are in several databases, which `muster cells` lists.'),
    WORKER_CELLS: setting(
      list,
      '',
      'Cells that a worker serves, of which the first is `home`; empty for all, also those added later.',
    ),
  },
  (config, problem) => {
    if (config.DATABASE_PORT === undefined) return
    const { DATABASE_HOST } = config
    const isDirectory = DATABASE_HOST.startsWith('/')
    const url = URL.parse(
      `postgres://${isDirectory ? 'localhost' : DATABASE_HOST}:${config.DATABASE_PORT}/${encodeURIComponent(config.DATABASE_NAME)}`,
    )
    if (url) {
      if (isDirectory) url.searchParams.set('host', DATABASE_HOST)
      url.username = config.DATABASE_USER
      if (config.DATABASE_PASSWORD) url.password = config.DATABASE_PASSWORD
      config.DATABASE_URL ??= url.href
    } else if (!config.DATABASE_URL) problem('DATABASE_HOST', 'must be a host name or an absolute directory')
    config.DATABASE_LISTEN_URL ??= config.DATABASE_URL
  },
)

declare module '../base/config.ts' {
  interface Config extends Values<typeof databaseSettings> {}
}
