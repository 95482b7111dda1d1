import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { PROFILE } from '../support/cells-profile.ts'
import { root } from '../support/processes.ts'

const run = promisify(execFile)

describe('projects in a second cell', function () {
  this.timeout(600_000)

  for (const place of ['second', 'alternate'] as const)
    it(`behave as in one database${place === 'alternate' ? ', next to projects at home' : ''}`, async () => {
      const args = ['node_modules/mocha/bin/mocha.js', '--parallel', '--jobs', '2', '--exit', ...PROFILE]
      const env = { ...process.env, TEST_CELLS: place }
      const { code = 0, stdout } = await run(process.execPath, args, {
        cwd: root,
        env,
        maxBuffer: 64 * 1024 ** 2,
      }).catch(error => error)
      assert.equal(code, 0, stdout)
      assert.match(stdout, /^ +[1-9]\d* passing/m)
    })
})
