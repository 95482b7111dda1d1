import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')

/** Files of a tree that breaks every dependency rule once, and keeps to it once where the two are easily confused. */
const fixture: Record<string, string> = {
  'src/config.ts': `import './settings.ts'\nimport '#core/base/clock.ts'\nimport '#identity/users/operations.ts'`,
  'src/settings.ts': `import './control/webhooks/settings.ts'`,
  'src/core/base/setting.ts': `import { z } from 'zod'\nexport const text = z.string()`,
  'src/core/base/reader.ts': `import '#config.ts'`,
  'src/control/webhooks/settings.ts': `import { hostname } from 'node:os'\nimport { z } from 'zod'\nimport '#core/base/ids.ts'\nimport { text } from '#core/base/setting.ts'\nexport const host = z.union([text, z.literal(hostname())])`,
  'src/app.ts': `import './api.ts'`,
  'src/api.ts': `import './identity/users/operations.ts'\nimport './formations/records/store.ts'`,
  'src/core/base/ids.ts': `import './clock.ts'`,
  'src/core/base/clock.ts': `import type { Users } from '#identity/users/model.ts'\nexport type Clock = Users`,
  'src/core/api/kind.ts': `import '#api.ts'`,
  'src/core/db/pool.ts': `import pg from 'pg'\nexport const pool = pg.Pool`,
  'src/core/queues/queue.ts': `import { PgBoss } from 'pg-boss'\nimport '../db/pool.ts'\nexport const boss = PgBoss`,
  'src/core/json-schema/validate.ts': `import { Ajv } from 'ajv'\nexport const ajv = Ajv`,
  'src/core/json-schema/task.ts': `import './validate.ts'\nexport type Job = string`,
  'src/core/json-schema/checks.ts': `import './validate.ts'\nimport type { Job } from './task.ts'\nexport type Asked = Job`,
  'src/core/net/egress.ts': `import { Agent } from 'undici'\nexport const agent = Agent`,
  'src/core/base/left.ts': `import { right } from './right.ts'\nexport const left = () => right`,
  'src/core/base/right.ts': `import { left } from './left.ts'\nexport const right = () => left`,
  'src/core/base/shell.ts': `import '#operator/up.ts'`,
  'src/core/base/lost.ts': `import './nowhere.ts'`,
  'src/core/base/check.ts': `import ts from 'typescript'\nexport const version = ts.version`,
  'src/core/base/work.ts': `import type { Queue } from '#core/work/queue.ts'\nexport type Work = Queue`,
  'src/core/work/queue.ts': `import '../base/ids.ts'\nexport type Queue = string`,
  'src/core/work/loose.ts': `import '../loose.ts'`,
  'src/core/loose.ts': `export {}`,
  'src/identity/users/model.ts': `export type Users = string`,
  'src/identity/users/operations.ts': `import '#core/base/ids.ts'\nimport '#control/audit/store.ts'`,
  'src/identity/users/lazy.ts': `export const audit = () => import('#control/audit/store.ts')`,
  'src/control/audit/store.ts': `import type { Users } from '#identity/users/model.ts'\nexport const users: Users = ''`,
  'src/control/audit/handlers.ts': `import '../../../jobs/worker.ts'`,
  'src/control/webhooks/deliver.ts': `import { fetch } from 'undici'\nexport const post = fetch`,
  'src/control/webhooks/match.ts': `import { RE2JS } from 're2js'\nexport const engine = RE2JS`,
  'src/control/webhooks/store.ts': `import pg from 'pg'\nexport const client = pg.Client`,
  'src/control/webhooks/send.ts': `import type { PgBoss } from 'pg-boss'\nexport type Boss = PgBoss`,
  'src/control/webhooks/trace.ts': `import { resourceFromAttributes } from '@opentelemetry/resources'\nexport const resource = resourceFromAttributes`,
  'src/core/base/telemetry.ts': `import type { Resource } from '@opentelemetry/resources'\nexport type Traced = Resource`,
  'src/control/webhooks/probe.ts': `import '../../../test/support/probe.ts'`,
  'src/memory/entries/write.ts': `import '../facts/store.ts'\nimport '../reach.ts'`,
  'src/memory/facts/store.ts': `import '../reach.ts'`,
  'src/memory/reach.ts': `import './facts/model.ts'`,
  'src/memory/facts/model.ts': `export {}`,
  'src/execution/providers/call.ts': `import '#local/double/server.ts'\nimport '../agents/model.ts'`,
  'src/execution/agents/model.ts': `export {}`,
  'src/automation/orchestrations/definition/model.ts': `import '../runs/store.ts'`,
  'src/automation/orchestrations/runs/store.ts': `export {}`,
  'src/extras/odd.ts': `export const odd = 1`,
  'src/formations/records/store.ts': `import '#identity/users/operations.ts'\nimport '#extras/odd.ts'\nimport '../operations.ts'`,
  'src/formations/operations.ts': `import './template/parse.ts'`,
  'src/formations/template/parse.ts': `export {}`,
  'src/local/postgres.ts': `import pg from 'pg'\nexport const client = pg.Client`,
  'src/local/double/server.ts': `import '#core/base/ids.ts'\nimport './script.ts'`,
  'src/local/double/script.ts': `export const script = []`,
  'src/operator/up.ts': `import '#identity/users/operations.ts'\nimport '#local/double/server.ts'\nimport '../../jobs/worker.ts'`,
  'src/web.ts': `import './operator/up.ts'`,
  'jobs/worker.ts': `import '#control/audit/store.ts'`,
  'jobs/other.ts': `import '#operator/up.ts'`,
  'bin/muster.ts': `import '#operator/up.ts'`,
  'bin/double.ts': `import '#local/double/server.ts'`,
  'src/core/base/generated.ts': `import '../../../client/src/call.ts'`,
  'client/src/call.ts': `import '../../src/core/base/ids.ts'\nimport './errors.ts'`,
  'client/src/errors.ts': `export {}`,
  'src/core/base/page.ts': `import '../../../console/src/api.ts'`,
  'console/src/api.ts': `import '../../src/core/base/ids.ts'\nimport './views/control/usage.ts'`,
  'console/src/router.tsx': `import('./views/control/usage.ts')\nimport('./views/loose.ts')`,
  'console/src/views/control/usage.ts': `import './prices.ts'\nimport '../content/files.ts'`,
  'console/src/views/control/prices.ts': `export {}`,
  'console/src/views/content/files.ts': `export {}`,
  'console/src/views/loose.ts': `export {}`,
  'client/build/generate.ts': `import '../../src/core/base/ids.ts'\nimport ts from 'typescript'\nexport const version = ts.version`,
  'test/support/probe.ts': `import pg from 'pg'\nimport { fetch } from 'undici'\nexport const probe = [pg, fetch]`,
}

const expected = [
  'client-build-reads-the-description: client/build/generate.ts -> src/core/base/ids.ts',
  'client-stands-alone: client/src/call.ts -> src/core/base/ids.ts',
  'command-line-is-on-top: jobs/other.ts -> src/operator/up.ts',
  'command-line-is-on-top: src/core/base/shell.ts -> src/operator/up.ts',
  'command-line-is-on-top: src/web.ts -> src/operator/up.ts',
  'config-loads-no-module: src/config.ts -> src/identity/users/operations.ts',
  'console-is-a-client: console/src/api.ts -> src/core/base/ids.ts',
  'console-view-is-in-an-area: console/src/router.tsx -> console/src/views/loose.ts',
  'console-views-are-on-top: console/src/api.ts -> console/src/views/control/usage.ts',
  'console-views-of-one-area: console/src/views/control/usage.ts -> console/src/views/content/files.ts',
  'core-knows-no-module: src/core/api/kind.ts -> src/api.ts',
  'core-knows-no-module: src/core/base/clock.ts -> src/identity/users/model.ts',
  'core-knows-no-module: src/core/base/reader.ts -> src/config.ts',
  'core-knows-no-module: src/core/base/shell.ts -> src/operator/up.ts',
  'database-only-in-core: src/control/webhooks/send.ts -> pg-boss',
  'database-only-in-core: src/control/webhooks/store.ts -> pg',
  'double-stands-alone: src/local/double/server.ts -> src/core/base/ids.ts',
  'egress-only: src/control/webhooks/deliver.ts -> undici',
  'entries-are-on-top: src/control/audit/handlers.ts -> jobs/worker.ts',
  'known-area: src/formations/records/store.ts -> src/extras/odd.ts',
  'known-folder: src/core/work/loose.ts -> src/core/loose.ts',
  'local-is-not-the-application: src/execution/providers/call.ts -> src/local/double/server.ts',
  'no-client-in-the-application: src/core/base/generated.ts -> client/src/call.ts',
  'no-client-in-the-application: src/core/base/page.ts -> console/src/api.ts',
  'no-cycle: src/core/base/left.ts -> src/core/base/right.ts',
  'no-development-package-in-the-application: src/core/base/check.ts -> typescript',
  'no-test-in-the-application: src/control/webhooks/probe.ts -> test/support/probe.ts',
  'no-unresolved-import: src/core/base/lost.ts -> ./nowhere.ts',
  'no-upward-import-from-automation/orchestrations/definition: src/automation/orchestrations/definition/model.ts -> src/automation/orchestrations/runs/store.ts',
  'no-upward-import-from-core/base: src/core/base/work.ts -> src/core/work/queue.ts',
  'no-upward-import-from-core/work: src/core/work/loose.ts -> src/core/loose.ts',
  'no-upward-import-from-execution/providers: src/execution/providers/call.ts -> src/execution/agents/model.ts',
  'no-upward-import-from-execution: src/execution/providers/call.ts -> src/local/double/server.ts',
  'no-upward-import-from-formations/records: src/formations/records/store.ts -> src/formations/operations.ts',
  'no-upward-import-from-formations: src/formations/records/store.ts -> src/extras/odd.ts',
  'no-upward-import-from-identity: src/identity/users/lazy.ts -> src/control/audit/store.ts',
  'no-upward-import-from-identity: src/identity/users/operations.ts -> src/control/audit/store.ts',
  'schemas-run-in-threads: src/control/webhooks/match.ts -> re2js',
  'schemas-run-in-threads: src/core/json-schema/checks.ts -> src/core/json-schema/validate.ts',
  'settings-stand-alone: src/control/webhooks/settings.ts -> src/core/base/ids.ts',
  'telemetry-in-one-file: src/control/webhooks/trace.ts -> @opentelemetry',
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

  it('wake-ups are sent after commits: only the notifier, the invalidation of caches, the check of a start, breaking migrations and moves of projects notify in a statement', () => {
    const notifying = sources('src', 'jobs', 'bin').filter(file =>
      /\bpg_notify\b|\bnotify [a-z]+;/.test(fs.readFileSync(path.join(root, file), 'utf8')),
    )
    assert.deepEqual(notifying.sort(), [
      'src/core/db/connections.ts',
      'src/core/db/notifier.ts',
      'src/core/queues/breaking-migrations.ts',
      'src/core/services/moving-project.ts',
      'src/core/writes/writer.ts',
    ])
  })
})
