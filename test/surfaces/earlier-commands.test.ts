import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { extract } from 'tar'
import { PREVIOUS } from '#local/drills/upgrade.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { inherited, root } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const run = promisify(execFile)

const REPLY = 'Orders can be returned within thirty days.'

describe('the command line of the release before', function () {
  this.timeout(120_000)
  const app: SessionApp = forSuite(startSessionApp)
  let folder: string
  let agentId: string
  before(async () => {
    folder = fs.mkdtempSync(path.join(tmpdir(), 'earlier-commands-'))
    await extract({ file: path.join(root, `test/releases/${PREVIOUS}.cli.tar.gz`), cwd: folder })
    agentId = (await app.scripted([{ reply: { text: REPLY, chunk_words: 2 } }])).agentId
  })
  after(() => fs.rmSync(folder, { recursive: true, force: true }))

  const muster = async (...args: string[]): Promise<string> => {
    const settings = { MUSTER_URL: app.url, MUSTER_TOKEN: app.key.token as string, MUSTER_CONFIG_DIR: folder }
    const options = { cwd: folder, env: { ...inherited(), ...settings } }
    return (await run(process.execPath, [path.join(folder, 'bin/muster.mjs'), ...args], options)).stdout
  }
  const json = async (...args: string[]) => JSON.parse(await muster(...args, '--json'))

  it('has its version', async () => assert.equal(await muster('--version'), `${PREVIOUS}\n`))

  it('creates, reads, changes, lists and deletes records', async () => {
    const made = await json('actors', 'create', '--name', 'ada', '--external-id', 'a-1')
    assert.equal((await json('actors', 'get', made.id)).name, 'ada')
    assert.equal((await json('actors', 'update', made.id, '--name', 'eve')).name, 'eve')
    for (let n = 0; n < 3; n++) await muster('actors', 'create', '--name', `actor ${n}`)
    const lines = (await muster('actors', 'list', '--all', '--jsonl')).trim().split('\n')
    assert.deepEqual(lines.map(line => JSON.parse(line).name).sort(), ['actor 0', 'actor 1', 'actor 2', 'eve'])
    assert.match(await muster('actors', 'list', '--external-id', 'a-1'), /eve/)
    await muster('actors', 'delete', made.id, '--yes')
    await assert.rejects(muster('actors', 'get', made.id), (error: any) => error.code === 5)
  })

  it('waits for turns, streams them, and talks in a session', async () => {
    const content = ['--prompt', 'x', '--field', 'output.content']
    assert.equal((await muster('agents', 'generate', agentId, ...content)).trim(), REPLY)
    assert.equal((await muster('agents', 'generate', agentId, '--prompt', 'x', '--stream')).trim(), REPLY)
    const session = await json('sessions', 'create', '--agent-id', agentId)
    assert.equal((await json('sessions', 'get', session.id)).status, 'open')
    assert.ok((await json('sessions', 'list')).total >= 1)
    assert.ok((await json('generations', 'list', '--agent-id', agentId)).total >= 2)
  })

  it('uploads and downloads files', async () => {
    const file = path.join(folder, 'note.txt')
    fs.writeFileSync(file, 'the text of a note')
    const { id } = await json('files', 'upload', '--file', file)
    assert.equal(await muster('files', 'download', id), 'the text of a note')
  })

  it('ends with the codes of its errors', async () => {
    const endsWith = (code: number, ...args: string[]) =>
      assert.rejects(muster(...args), (error: any) => error.code === code && error.stderr !== '', args.join(' '))
    await endsWith(5, 'agents', 'get', 'agent_1')
    await endsWith(2, 'agents', 'fly')
    await endsWith(2, 'actors', 'get')
  })
})
