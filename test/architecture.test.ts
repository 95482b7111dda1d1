import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')

/** Files of a tree that breaks every dependency rule once, and keeps to it once where the two are easily confused. */
const fixture: Record<string, string> = {
  'src/config.ts': `import './core/api/ids.ts'`,
  'src/app.ts': `import './api.ts'`,
  'src/api.ts': `import './identity/users/operations.ts'\nimport './formations/stacks/operations.ts'`,
  'src/core/api/ids.ts': `import '../process/clock.ts'`,
  'src/core/process/clock.ts': `import type { Users } from '../../identity/users/model.ts'\nexport type Clock = Users`,
  'src/core/api/kind.ts': `import '../../api.ts'`,
  'src/core/db/pool.ts': `import pg from 'pg'\nexport const pool = pg.Pool`,
  'src/core/jobs/queue.ts': `import { PgBoss } from 'pg-boss'\nexport const boss = PgBoss`,
  'src/core/json-schema/validate.ts': `import { Ajv } from 'ajv'\nexport const ajv = Ajv`,
  'src/core/json-schema/task.ts': `import './validate.ts'\nexport type Job = string`,
  'src/core/json-schema/checks.ts': `import './validate.ts'\nimport type { Job } from './task.ts'\nexport type Asked = Job`,
  'src/core/net/egress.ts': `import { Agent } from 'undici'\nexport const agent = Agent`,
  'src/core/left.ts': `import { right } from './right.ts'\nexport const left = () => right`,
  'src/core/right.ts': `import { left } from './left.ts'\nexport const right = () => left`,
  'src/core/shell.ts': `import '../cli/up.ts'`,
  'src/core/lost.ts': `import './nowhere.ts'`,
  'src/core/check.ts': `import ts from 'typescript'\nexport const version = ts.version`,
  'src/identity/users/model.ts': `export type Users = string`,
  'src/identity/users/operations.ts': `import '../../core/api/ids.ts'\nimport '../../control/audit/store.ts'`,
  'src/identity/users/lazy.ts': `export const audit = () => import('../../control/audit/store.ts')`,
  'src/control/audit/store.ts': `import type { Users } from '../../identity/users/model.ts'\nexport const users: Users = ''`,
  'src/control/audit/handlers.ts': `import '../../../jobs/worker.ts'`,
  'src/control/webhooks/deliver.ts': `import { fetch } from 'undici'\nexport const post = fetch`,
  'src/control/webhooks/match.ts': `import { RE2JS } from 're2js'\nexport const engine = RE2JS`,
  'src/control/webhooks/store.ts': `import pg from 'pg'\nexport const client = pg.Client`,
  'src/control/webhooks/send.ts': `import type { PgBoss } from 'pg-boss'\nexport type Boss = PgBoss`,
  'src/control/webhooks/probe.ts': `import '../../../test/support/probe.ts'`,
  'src/execution/models/call.ts': `import '../../local/double/server.ts'`,
  'src/extras/odd.ts': `export const odd = 1`,
  'src/formations/stacks/operations.ts': `import '../../identity/users/operations.ts'\nimport '../../extras/odd.ts'`,
  'src/local/postgres.ts': `import pg from 'pg'\nexport const client = pg.Client`,
  'src/local/double/server.ts': `import '../../core/api/ids.ts'\nimport './script.ts'`,
  'src/local/double/script.ts': `export const script = []`,
  'src/cli/up.ts': `import '../identity/users/operations.ts'\nimport '../local/double/server.ts'\nimport '../../jobs/worker.ts'`,
  'src/web.ts': `import './cli/up.ts'`,
  'jobs/worker.ts': `import '../src/control/audit/store.ts'`,
  'jobs/other.ts': `import '../src/cli/up.ts'`,
  'bin/muster.ts': `import '../src/cli/up.ts'`,
  'bin/double.ts': `import '../src/local/double/server.ts'`,
  'src/core/generated.ts': `import '../../client/src/call.ts'`,
  'client/src/call.ts': `import '../../src/core/api/ids.ts'\nimport './errors.ts'`,
  'client/src/errors.ts': `export {}`,
  'src/core/page.ts': `import '../../console/src/api.ts'`,
  'console/src/api.ts': `import '../../src/core/api/ids.ts'`,
  'client/build/generate.ts': `import '../../src/core/api/ids.ts'\nimport ts from 'typescript'\nexport const version = ts.version`,
  'test/support/probe.ts': `import pg from 'pg'\nimport { fetch } from 'undici'\nexport const probe = [pg, fetch]`,
}

const expected = [
  'client-build-reads-the-description: client/build/generate.ts -> src/core/api/ids.ts',
  'client-stands-alone: client/src/call.ts -> src/core/api/ids.ts',
  'command-line-is-on-top: jobs/other.ts -> src/cli/up.ts',
  'command-line-is-on-top: src/core/shell.ts -> src/cli/up.ts',
  'command-line-is-on-top: src/web.ts -> src/cli/up.ts',
  'config-stands-alone: src/config.ts -> src/core/api/ids.ts',
  'console-is-a-client: console/src/api.ts -> src/core/api/ids.ts',
  'core-knows-no-module: src/core/api/kind.ts -> src/api.ts',
  'core-knows-no-module: src/core/process/clock.ts -> src/identity/users/model.ts',
  'core-knows-no-module: src/core/shell.ts -> src/cli/up.ts',
  'database-only-in-core: src/control/webhooks/send.ts -> pg-boss',
  'database-only-in-core: src/control/webhooks/store.ts -> pg',
  'double-stands-alone: src/local/double/server.ts -> src/core/api/ids.ts',
  'egress-only: src/control/webhooks/deliver.ts -> undici',
  'entries-are-on-top: src/control/audit/handlers.ts -> jobs/worker.ts',
  'known-area: src/formations/stacks/operations.ts -> src/extras/odd.ts',
  'local-is-not-the-application: src/execution/models/call.ts -> src/local/double/server.ts',
  'no-client-in-the-application: src/core/generated.ts -> client/src/call.ts',
  'no-client-in-the-application: src/core/page.ts -> console/src/api.ts',
  'no-cycle: src/core/left.ts -> src/core/right.ts',
  'no-development-package-in-the-application: src/core/check.ts -> typescript',
  'no-test-in-the-application: src/control/webhooks/probe.ts -> test/support/probe.ts',
  'no-unresolved-import: src/core/lost.ts -> ./nowhere.ts',
  'no-upward-import-from-execution: src/execution/models/call.ts -> src/local/double/server.ts',
  'no-upward-import-from-formations: src/formations/stacks/operations.ts -> src/extras/odd.ts',
  'no-upward-import-from-identity: src/identity/users/lazy.ts -> src/control/audit/store.ts',
  'no-upward-import-from-identity: src/identity/users/operations.ts -> src/control/audit/store.ts',
  'schemas-run-in-threads: src/control/webhooks/match.ts -> re2js',
  'schemas-run-in-threads: src/core/json-schema/checks.ts -> src/core/json-schema/validate.ts',
]

interface Violation {
  rule: { name: string }
  from: string
  to: string
}

/** Runs the project's rules over `dir`; returns the violations as `rule: from -> to`, packages by their name. */
function violations(dir: string): string[] {
  const config = path.join(root, '.dependency-cruiser.mjs')
  const args = [
    '--config',
    config,
    '--output-type',
    'json',
    'src',
    'jobs',
    'bin',
    'client/src',
    'client/build',
    'console/src',
    'test',
  ]
  const { stdout, stderr } = spawnSync(path.join(root, 'node_modules/.bin/depcruise'), args, {
    cwd: dir,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  })
  assert.ok(stdout.startsWith('{'), stderr)
  const found: Violation[] = JSON.parse(stdout).summary.violations
  return found
    .map(({ rule, from, to }) => `${rule.name}: ${from} -> ${to.replace(/^.*node_modules\/([^/]+)\/.*$/, '$1')}`)
    .sort()
}

function sources(...dirs: string[]): string[] {
  return dirs
    .flatMap(dir => fs.readdirSync(path.join(root, dir), { recursive: true, encoding: 'utf8' }).map(f => `${dir}/${f}`))
    .filter(file => file.endsWith('.ts'))
}

describe('architecture', () => {
  it('the dependency rules refuse every forbidden import and nothing else', () => {
    const dir = fs.mkdtempSync(path.join(tmpdir(), 'muster-architecture-'))
    try {
      for (const [file, content] of Object.entries(fixture)) {
        fs.mkdirSync(path.dirname(path.join(dir, file)), { recursive: true })
        fs.writeFileSync(path.join(dir, file), `${content}\n`)
      }
      for (const file of ['tsconfig.json', 'package.json']) fs.copyFileSync(path.join(root, file), path.join(dir, file))
      fs.symlinkSync(path.join(root, 'node_modules'), path.join(dir, 'node_modules'))
      assert.deepEqual(violations(dir), expected)
    } finally {
      fs.rmSync(dir, { recursive: true, force: true })
    }
  })

  it('only core/db builds a database pool', () => {
    const builders = sources('src', 'jobs', 'bin').filter(file =>
      /\bcreatePool\b|\bnew pg\.Pool\b/.test(fs.readFileSync(path.join(root, file), 'utf8')),
    )
    assert.deepEqual(
      builders.filter(file => file !== 'src/core/db/pool.ts'),
      [],
    )
  })

  it('wake-ups are sent behind commits: only the notifier, the drop of caches and the check of a start notify in a statement', () => {
    const notifying = sources('src', 'jobs', 'bin').filter(file =>
      /\bpg_notify\b|\bnotify [a-z]+;/.test(fs.readFileSync(path.join(root, file), 'utf8')),
    )
    assert.deepEqual(notifying.sort(), [
      'src/core/db/connections.ts',
      'src/core/db/notifier.ts',
      'src/core/db/writer.ts',
    ])
  })
})
