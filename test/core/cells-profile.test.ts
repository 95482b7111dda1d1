import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import pg from 'pg'
import { PROFILE } from '../support/cells-profile.ts'
import { startServer } from '../support/postgres.ts'
import { root } from '../support/processes.ts'

const run = promisify(execFile)

async function runProfile(env: Record<string, string>): Promise<void> {
  const args = ['node_modules/mocha/bin/mocha.js', '--parallel', '--jobs', '2', '--exit', ...PROFILE]
  const { code = 0, stdout } = await run(process.execPath, args, {
    cwd: root,
    env: { ...process.env, TEST_POOLER: '', ...env },
    maxBuffer: 64 * 1024 ** 2,
  }).catch(error => error)
  assert.equal(code, 0, stdout)
  assert.match(stdout, /^ +[1-9]\d* passing/m)
}

async function rowsOf(databaseUrl: string, text: string): Promise<any[]> {
  const client = new pg.Client({ connectionString: databaseUrl })
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

describe('projects in a second cell', function () {
  this.timeout(600_000)

  it('behave as in one database, all in a schema of it', () =>
    runProfile({ TEST_CELLS: 'second', TEST_CELL_SERVERS: 'false' }))

  it('behave as in one database, in a second server next to projects at home', async () => {
    const [home, second] = await Promise.all(
      ['profile', 'profile-second'].map(name => startServer({ name, replicates: true })),
    )
    try {
      await runProfile({
        TEST_CELLS: 'alternate',
        TEST_CELL_SERVERS: 'true',
        TEST_DATABASE_URL: home.url,
        TEST_CELL_DATABASE_URL: second.url,
      })
      const started = `'logical replication apply worker for subscription "[^"]+" has started'`
      const [{ copied }] = await rowsOf(
        second.url,
        `select regexp_count(pg_read_file('server.log'), ${started}) as copied`,
      )
      assert.ok(copied >= PROFILE.length, `${copied} databases with copies in the second server`)
      for (const { url } of [home, second])
        assert.deepEqual(
          await rowsOf(
            url,
            `select datname as left from pg_database where datname like 'muster\\_test\\_%'
             union all select slot_name from pg_replication_slots union all select subname from pg_subscription`,
          ),
          [],
        )
    } finally {
      await Promise.all([home.stop(), second.stop()])
    }
  })
})
