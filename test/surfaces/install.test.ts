import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { findPython } from '../support/python.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const run = promisify(execFile)

const REPLY = 'Orders can be returned within thirty days.'
const ACTORS = 130

/** What the programs of the page print: a reply, a stream, the size of a list, and an error. */
const RESULTS = [REPLY, REPLY, String(ACTORS), 'RESOURCE_NOT_FOUND']

const page = fs.readFileSync(path.resolve(import.meta.dirname, '../../docs/install.md'), 'utf8')

/** Returns the program of a language on the page. */
function programOf(language: string): string {
  const [program, ...others] = [...page.matchAll(/^```(\w+)\n(.*?)^```$/gms)].filter(([, each]) => each === language)
  assert.deepEqual([program !== undefined, others.length], [true, 0], language)
  return program[2]
}

const linesOf = (text: string): string[] => text.trim().split('\n')

/** Where neither npm nor pip may find anything. */
const NOWHERE = 'http://127.0.0.1:1'

describe('installs from a deployment into an empty folder, without another network', function () {
  this.timeout(180_000)
  const app: SessionApp = forSuite(startSessionApp)
  let folder: string
  let agentId: string
  before(async () => {
    folder = fs.mkdtempSync(path.join(tmpdir(), 'install-'))
    agentId = (await app.scripted([{ reply: { text: REPLY, chunk_words: 2 } }])).agentId
    for (let n = 0; n < ACTORS; n += 10)
      await Promise.all(
        Array.from({ length: 10 }, (_, index) => createdBy(app.key, '/actors', { name: `actor ${n + index}` })),
      )
  })
  after(() => fs.rmSync(folder, { recursive: true, force: true }))

  const environment = () => ({
    PATH: process.env.PATH as string,
    HOME: folder,
    HTTP_PROXY: NOWHERE,
    HTTPS_PROXY: NOWHERE,
    NO_PROXY: '127.0.0.1',
    npm_config_registry: NOWHERE,
    npm_config_cache: path.join(folder, '.npm'),
    npm_config_update_notifier: 'false',
    PIP_NO_INDEX: '1',
    PIP_CONFIG_FILE: '/dev/null',
    PIP_DISABLE_PIP_VERSION_CHECK: '1',
    MUSTER_URL: app.url,
    MUSTER_TOKEN: app.key.token as string,
    MUSTER_CONFIG_DIR: path.join(folder, 'muster'),
    AGENT: agentId,
  })
  const execute = async (program: string, ...args: string[]) =>
    (await run(program, args, { cwd: folder, env: environment(), maxBuffer: 64 * 1024 * 1024 })).stdout

  /** A turn, a stream, a list of pages and an error of the command line. */
  async function useProgram(...start: string[]) {
    const [program, ...args] = start
    const muster = (...more: string[]) => execute(program, ...args, ...more)
    assert.equal(
      (await muster('agents', 'generate', agentId, '--prompt', 'x', '--field', 'output.content')).trim(),
      REPLY,
    )
    assert.equal((await muster('agents', 'generate', agentId, '--prompt', 'x', '--stream')).trim(), REPLY)
    assert.equal((await muster('actors', 'list', '--all', '--jsonl')).trim().split('\n').length, ACTORS)
    await assert.rejects(
      muster('agents', 'get', 'agent_1'),
      (error: any) => error.code === 5 && /RESOURCE_NOT_FOUND/.test(error.stderr),
    )
    await assert.rejects(muster('doctor'), (error: any) => error.code === 2 && /in its checkout/.test(error.stderr))
  }

  it('the client of npm', async () => {
    await execute('npm', 'install', `${app.url}/packages/client.tgz`)
    fs.writeFileSync(path.join(folder, 'app.mjs'), programOf('ts'))
    assert.deepEqual(linesOf(await execute(process.execPath, 'app.mjs')), RESULTS)
  })

  it('the command line of npm', async () => {
    await execute('npm', 'install', '--global', '--prefix', folder, `${app.url}/packages/cli.tgz`)
    await useProgram(path.join(folder, 'bin/muster'))
  })

  it('the command line as one file', async () => {
    const response = await fetch(`${app.url}/packages/muster.mjs`)
    fs.writeFileSync(path.join(folder, 'muster.mjs'), Buffer.from(await response.arrayBuffer()))
    await useProgram(process.execPath, 'muster.mjs')
    assert.match(
      await execute(process.execPath, 'muster.mjs', 'prices', 'import', '--help'),
      /^Usage: muster prices import/,
    )
    assert.match(await execute(process.execPath, 'muster.mjs', '__complete', 'agents', 'gen'), /^generate/)
  })

  it('the client of pip', async function () {
    const python = await findPython()
    if (!python) return this.skip()
    const { version } = (await (await fetch(`${app.url}/packages/index.json`)).json()) as { version: string }
    const wheel = `${app.url}/packages/muster_client-${version}-py3-none-any.whl`
    await execute(python, '-m', 'pip', 'install', '--quiet', '--target', 'site', wheel)
    fs.writeFileSync(path.join(folder, 'site/app.py'), programOf('python'))
    assert.deepEqual(linesOf(await execute(python, 'site/app.py')), RESULTS)
    const asynchronous = programOf('py')
      .replace('http://localhost:5047', app.url)
      .replace('sk_…', app.key.token as string)
      .replace('agent_…', agentId)
    fs.writeFileSync(path.join(folder, 'site/other.py'), asynchronous)
    const [first, ...others] = linesOf(await execute(python, 'site/other.py'))
    assert.ok(first.startsWith(REPLY), first)
    assert.equal(others.length, ACTORS - 1)
  })
})
