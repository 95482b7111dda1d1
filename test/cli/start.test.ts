import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { json, startScripted } from '../client/support.ts'
import { forSuite } from '../support/suite.ts'
import { PROGRAM, User } from './support.ts'

const root = path.resolve(import.meta.dirname, '../..')
const ID = `actor_${'0'.repeat(26)}`
const LIST = { data: [{ id: ID, name: 'Ann' }, { id: '$(touch executed)' }], total: 2 }

describe('a start of the command line', function () {
  this.timeout(60_000)
  const service = forSuite(() => startScripted(json(LIST)))
  let user: User
  beforeEach(() => {
    user = new User(service.url, 'sk_x')
  })
  afterEach(() => user.close())

  /** Runs the program; returns the files of this repository and the modules of Node that it has loaded. */
  const loads = async (...args: string[]) => {
    const coverage = path.join(user.directory, 'coverage')
    const listed = path.join(user.directory, 'listed')
    const probe = user.file(
      'probe.cjs',
      `process.on('exit', () => require('node:fs').writeFileSync('${listed}', process.moduleLoadList.join('\\n')))`,
    )
    const { code, stdout, stderr } = await user.run(args, {
      env: { NODE_V8_COVERAGE: coverage, NODE_OPTIONS: `--require=${probe}` },
    })
    assert.equal(code, 0, stderr)
    const [report] = fs.readdirSync(coverage).filter(name => name.startsWith('coverage-'))
    const { result } = JSON.parse(fs.readFileSync(path.join(coverage, report), 'utf8')) as { result: { url: string }[] }
    const files = result.flatMap(({ url }) => {
      const file = url.startsWith('file:') ? path.relative(root, new URL(url).pathname) : '..'
      return file.startsWith('..') ? [] : [file]
    })
    return { files: files.sort(), modules: fs.readFileSync(listed, 'utf8').split('\n'), stdout }
  }

  const HEAVY = ['NativeModule http', 'NativeModule crypto', 'NativeModule internal/deps/undici/undici']
  const isHeavy = (module: string) => HEAVY.includes(module)

  it('loads nothing but the program for --version', async () => {
    const { files, modules, stdout } = await loads('--version')
    assert.deepEqual(files, ['bin/muster.mjs'])
    assert.ok(!modules.some(each => isHeavy(each) || each === 'NativeModule net'))
    assert.match(stdout, /^\d+\.\d+\.\d+\n$/)
    assert.equal((await user.run(['-V'])).stdout, stdout)
  })

  it('loads one small file for a completion', async () => {
    const { files, modules, stdout } = await loads('__complete', 'actors', 'ge')
    assert.deepEqual(files, ['bin/muster.mjs', 'cli/dist/complete.js'])
    assert.ok(!modules.some(each => isHeavy(each) || each === 'NativeModule net'))
    assert.match(stdout, /^get\t.*\n$/)
    assert.ok(fs.statSync(path.join(root, 'cli/dist/complete.js')).size < 16_384)
  })

  it('loads two files for a request, YAML only with a profile, and no unused module of Node', async () => {
    const command = ['bin/muster.mjs', 'cli/dist/main.js']
    assert.deepEqual((await loads('actors', 'get', ID)).files, command)
    assert.deepEqual((await loads('actors', 'get', '--help')).modules.filter(isHeavy), [])
    await user.run(['profile', 'set', 'url', service.url])
    fs.rmSync(path.join(user.directory, 'coverage'), { recursive: true })
    assert.deepEqual((await loads('actors', 'get', ID)).files, [...command, 'cli/dist/yaml.js'])
  })

  it('parses the commands that it needs and no others', async () => {
    const [head, ...lines] = fs.readFileSync(path.join(root, 'client/commands.json'), 'utf8').split('\n')
    const broken = lines.map(each =>
      each.startsWith('{"words":["actors",') ? each : each.replace('"method"', '"method'),
    )
    user.file('config/cache/default/commands.json', [head, ...broken].join('\n'))
    assert.equal((await user.run(['actors', 'get', ID])).stdout, JSON.stringify(LIST))
    assert.match((await user.run(['__complete', 'actors', ''])).stdout, /^create\t/m)
    assert.match((await user.run(['__complete', ''])).stdout, /^agents$/m)
    assert.equal((await user.run(['agents', 'list'])).code, 1)
  })

  it('prints what a service wrote about its commands so that no terminal and no shell executes it', async () => {
    const [head, ...lines] = fs.readFileSync(path.join(root, 'client/commands.json'), 'utf8').split('\n')
    const hostile = lines.map(each =>
      each.startsWith('{"words":["actors","get"]')
        ? `${each.replace(/"summary":"/, '$&\\u001b]0;title\\u0007')}\n${each
            .replace('"actors","get"', '"actors","$(id)"')
            .replace(/"id":"\w+"/, '"id":"hostile"')}`
        : each,
    )
    user.file('config/cache/default/commands.json', [head, ...hostile].join('\n'))
    const { stdout: help } = await user.run(['actors', '--help'])
    assert.ok(help.includes('\\x1b]0;title\\x07Get an actor'))
    const { stdout: candidates } = await user.run(['__complete', 'actors', ''])
    assert.match(candidates, /^get\t.*title/m)
    for (const text of [help, candidates]) assert.ok(!text.includes('\x1b'))
    assert.ok(!candidates.includes('$(id)'))
  })

  it('keeps compiled code in a directory of the user, and works without one', async () => {
    const cache = path.join(user.directory, 'cache')
    assert.equal(
      (await user.run(['actors', 'get', ID], { env: { NODE_COMPILE_CACHE: '', XDG_CACHE_HOME: cache } })).code,
      0,
    )
    assert.equal(fs.statSync(path.join(cache, 'muster')).mode & 0o777, 0o700)
    assert.equal(fs.readdirSync(path.join(cache, 'muster')).length, 1)
    const env = { NODE_COMPILE_CACHE: '', XDG_CACHE_HOME: user.file('no-directory', '') }
    const { code, stdout, stderr } = await user.run(['actors', 'get', ID], { env })
    assert.deepEqual([code, stdout, stderr], [0, JSON.stringify(LIST), ''])
  })

  it('keeps no compiled code where another user can write', async () => {
    const shared = path.join(user.directory, 'shared', 'muster')
    fs.mkdirSync(shared, { recursive: true })
    fs.chmodSync(shared, 0o777)
    const own = path.join(user.directory, 'own')
    fs.mkdirSync(own, { mode: 0o700 })
    fs.mkdirSync(path.join(user.directory, 'linked'))
    fs.symlinkSync(own, path.join(user.directory, 'linked', 'muster'))
    for (const cache of [path.dirname(shared), path.join(user.directory, 'linked'), 'relative']) {
      const env = { NODE_COMPILE_CACHE: '', HOME: user.directory, XDG_CACHE_HOME: cache }
      assert.equal((await user.run(['actors', 'get', ID], { env })).code, 0)
    }
    assert.deepEqual([fs.readdirSync(shared), fs.readdirSync(own)], [[], []])
    assert.equal(fs.existsSync(path.join(user.directory, 'relative')), false)
    assert.equal(fs.readdirSync(path.join(user.directory, '.cache/muster')).length, 1)
  })

  it('completes in bash, where an ID of the service is no code', async () => {
    await user.run(['profile', 'set', 'url', service.url])
    const own = { ...user.env, PATH: `${user.directory}:${process.env.PATH}` } as Record<string, string>
    delete own.MUSTER_URL
    fs.chmodSync(user.file('muster', `#!/bin/sh\nexec '${process.execPath}' '${PROGRAM}' "$@"\n`), 0o700)
    await user.run(['actors', 'list'])
    const complete = (...words: string[]) =>
      execFileSync(
        'bash',
        [
          '--norc',
          '-c',
          `source <(muster completion bash); COMP_WORDS=(muster "$@"); COMP_CWORD=$#; _muster; printf '%s\\n' "\${COMPREPLY[@]}"`,
          'bash',
          ...words,
        ],
        { cwd: user.directory, env: own, encoding: 'utf8' },
      ).trim()
    assert.equal(complete('acto'), 'actors')
    assert.equal(complete('approvals', 'list', '--status', 'ap'), 'approved')
    assert.equal(complete('actors', 'get', ''), ID)
    assert.equal(fs.existsSync(path.join(user.directory, 'executed')), false)
  })
})
