import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { installedServers } from '#local/drills/cluster.ts'
import { PROFILE, startOther } from '../support/other-postgres.ts'
import { root } from '../support/processes.ts'

const run = promisify(execFile)

describe('other versions of PostgreSQL', function () {
  this.timeout(300_000)
  const servers = installedServers()

  for (const bin of servers)
    it(`executes the migrations and the statements of every operation on the server of ${bin}`, async () => {
      const server = await startOther(bin)
      try {
        const args = ['node_modules/mocha/bin/mocha.js', '--parallel', '--jobs', '2', '--exit', ...PROFILE]
        const env = { ...process.env, TEST_POOLER: '', TEST_DATABASE_URL: server.url }
        const { stdout } = await run(process.execPath, args, { cwd: root, env }).catch(error => error)
        assert.match(stdout, /^ +\d+ passing/m)
        assert.doesNotMatch(stdout, /^ +\d+ failing/m, stdout)
      } finally {
        await server.stop()
      }
    })

  if (servers.length === 0)
    it('needs a server in /usr/lib/postgresql', function () {
      this.skip()
    })
})
