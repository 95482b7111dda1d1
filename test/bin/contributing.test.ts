import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { serverUrl } from '../support/postgres.ts'

const root = path.resolve(import.meta.dirname, '../..')
const page = fs.readFileSync(path.join(root, 'CONTRIBUTING.md'), 'utf8')

/** The files of the page: blocks whose first line names one. */
const files = [...page.matchAll(/^```(?:ts|sql) (\S+)(?: \(([^)\n]*)\))?\n(.*?)^```$/gms)].map(
  ([, file, note, text]) => ({
    file,
    note,
    text,
  }),
)

describe('the module of CONTRIBUTING.md', function () {
  this.timeout(240_000)

  const copy = fs.mkdtempSync(path.join(tmpdir(), 'muster-contributing-'))
  after(() => fs.rmSync(copy, { recursive: true, force: true }))

  before(() => {
    fs.chmodSync(copy, 0o755)
    for (const name of fs.readdirSync(root))
      if (!['.git', '.data', 'node_modules'].includes(name))
        fs.cpSync(path.join(root, name), path.join(copy, name), { recursive: true })
    fs.symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'))
    for (const { file, note, text } of files) {
      const target = path.join(copy, file)
      if (note === undefined) {
        fs.mkdirSync(path.dirname(target), { recursive: true })
        fs.writeFileSync(target, text)
      } else {
        // The list of modules: the import, and its name after another one.
        const [, name] = /^import (\w+) /.exec(text) as RegExpExecArray
        const before = note.replace('after ', '')
        const list = fs.readFileSync(target, 'utf8').replace(`  ${before},\n`, `  ${before},\n  ${name},\n`)
        fs.writeFileSync(target, text + list)
      }
    }
  })

  function succeeds(program: string, args: string[], given: NodeJS.ProcessEnv = {}): string {
    const { TEST_TOTALS: _, TEST_TIMES: __, ...env } = process.env
    const { status, stdout, stderr } = spawnSync(program, args, {
      cwd: copy,
      env: { ...env, ...given },
      encoding: 'utf8',
    })
    assert.equal(status, 0, `${stdout}\n${stderr}`)
    return stdout
  }

  it('has at most 170 lines, passes the type check and its own test', async () => {
    const source = files.filter(({ file }) => file.startsWith('src/') || file.startsWith('sql/'))
    assert.equal(source.length, 5)
    const lines = source.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0)
    assert.ok(lines <= 170, `${lines} lines`)
    const typed = files.map(({ file }) => file).filter(file => file.endsWith('.ts'))
    const config = path.join(copy, 'tsconfig.notes.json')
    fs.writeFileSync(config, JSON.stringify({ extends: './tsconfig.json', include: [], files: typed }))
    succeeds(process.execPath, [path.join(root, 'node_modules/typescript-native/bin/tsc'), '-p', config])
    const tested = succeeds('npm', ['run', 'test', '--', 'test/conversation/notes.test.ts'], {
      TEST_DATABASE_URL: await serverUrl(),
    })
    assert.match(tested, /^1 passed, 0 failed$/m)
  })

  it('is in the list of modules with all that it brings', () => {
    const { stdout } = spawnSync(process.execPath, ['bin/muster.ts', 'modules', '--json'], {
      cwd: copy,
      encoding: 'utf8',
    })
    const known = JSON.parse(stdout)
    assert.ok(known.modules.includes('notes'))
    assert.ok(known.kinds.includes('note'))
    const operations = known.operations.filter((id: string) => /^[a-z]+Notes?(Tags)?$/.test(id))
    assert.deepEqual(operations.sort(), [
      'createNote',
      'deleteNote',
      'getNote',
      'getNoteTags',
      'listNotes',
      'mergeNoteTags',
      'pinNote',
      'replaceNoteTags',
      'updateNote',
    ])
  })
})
