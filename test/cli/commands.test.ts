import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { program } from '#operator/program.ts'
import verbs from '#operator/verbs.json' with { type: 'json' }
import {
  type ApiCommand,
  type CommandField,
  flagOf,
  isReplaced,
  loadCommands,
  optionNames,
  VALUED_OPTIONS,
} from '../../cli/src/commands.ts'
import { exitCodeOf } from '../../cli/src/failure.ts'
import { commandHelp } from '../../cli/src/help.ts'
import { OWN_COMMANDS } from '../../cli/src/own-commands.ts'
import { parseCommand, parserOf } from '../../cli/src/parse.ts'
import { valueAt } from '../../cli/src/render.ts'
import { argumentsOf } from '../../cli/src/run.ts'
import { startScripted } from '../client/support.ts'
import { random } from '../support/random.ts'
import { forSuite } from '../support/suite.ts'
import { PROGRAM, User } from './support.ts'

const table = loadCommands(path.resolve(import.meta.dirname, '../../client/commands.json'))
const description = JSON.parse(fs.readFileSync(path.resolve(import.meta.dirname, '../../client/openapi.json'), 'utf8'))

const commands = table.below([])

const commandOf = (words: string): ApiCommand => table.find(words.split(' '))!

/** Returns the flat arguments of a command line. */
const flat = async (words: string, ...args: string[]) => {
  const command = commandOf(words)
  return argumentsOf(command, parseCommand(command, args))
}

/** A value of a field and the arguments that give it. */
function draw(field: CommandField, flag: string, next: (below: number) => number): { value: unknown; args: string[] } {
  const types = [field.type ?? []].flat().filter(type => type !== 'null')
  if (field.enum) {
    const value = field.enum.filter(each => each !== null)[0]
    return { value, args: [flag, String(value)] }
  }
  if (field.secret) {
    process.env.DRAWN = 'drawn secret'
    return { value: 'drawn secret', args: [flag, 'env:DRAWN'] }
  }
  const number = next(1000)
  if (types.length !== 1) {
    if (types.includes('array') && !types.includes('object'))
      return { value: [`${number}`, 'b'], args: [flag, `["${number}","b"]`] }
    if (types.includes('object') || types.length === 0)
      return { value: { drawn: [number] }, args: [flag, `{"drawn":[${number}]}`] }
    return { value: `${number}`, args: [flag, `${number}`] }
  }
  switch (types[0]) {
    case 'boolean':
      return next(2) ? { value: true, args: [flag] } : { value: false, args: [flag.replace('--', '--no-')] }
    case 'integer':
    case 'number':
      return { value: number, args: [flag, String(number)] }
    case 'object':
      return { value: { a: 'b=c', d: 'e' }, args: [flag, 'a=b=c', flag, 'd=e'] }
    case 'array': {
      const items = [field.items?.type ?? 'object'].flat()
      if (field.items?.enum) {
        const value = field.items.enum.slice(0, 2)
        return { value, args: [flag, value.join(',')] }
      }
      if (items.includes('string')) return { value: ['a,b', 'c'], args: [flag, 'a,b', flag, 'c'] }
      if (items.includes('number') || items.includes('integer')) return { value: [1, 2], args: [flag, '1', flag, '2'] }
      return { value: [{ a: 1 }, { b: 2 }], args: [flag, '[{"a":1}]', flag, '{"b":2}'] }
    }
    default:
      return { value: `text ${number}`, args: [flag, `text ${number}`] }
  }
}

describe('commands of the command line', () => {
  it('takes the flat arguments of every operation', async () => {
    const next = random(1)
    for (const command of commands) {
      const expected: Record<string, unknown> = {}
      const paths: string[] = []
      const args: string[] = []
      for (const field of command.fields) {
        if (field.in === 'path') {
          expected[field.name] = `id/${next(1000)}`
          paths.push(expected[field.name] as string)
          continue
        }
        if (isReplaced(command, field)) continue
        const drawn = draw(field, `--${flagOf(command, field)}`, next)
        expected[field.name] = drawn.value
        args.push(...drawn.args)
      }
      if (command.consumes) continue
      const parsed = parseCommand(command, [...paths, ...args])
      assert.deepEqual(await argumentsOf(command, parsed), expected, command.words.join(' '))
    }
  })

  it('describes exactly the fields of every operation in its help', async () => {
    for (const command of commands) {
      const text = commandHelp(command)
      const section = (name: string) => new RegExp(`^${name}:\\n((?: .*\\n|\\n(?= ))*)`, 'm').exec(text)?.[1] ?? ''
      const named = [
        ...[...section('Arguments').matchAll(/^ {2}(\w+)/gm)].map(match => match[1]),
        ...[...section('Fields').matchAll(/^ {2}--(?:field-)?([\w-]+)/gm)].map(match => match[1].replaceAll('-', '_')),
      ]
      assert.deepEqual(named.sort(), command.fields.map(each => each.name).sort(), command.words.join(' '))
      assert.ok(text.includes(`Permission: ${command.action ?? 'none'}`) && text.includes('Examples:'))
    }
  })

  it('finds every command by its words and by its ID, as the whole file describes it', () => {
    const whole = JSON.parse(fs.readFileSync(path.resolve(import.meta.dirname, '../../client/commands.json'), 'utf8'))
    assert.deepEqual(commands, whole.commands)
    assert.equal(table.version, whole.version)
    assert.deepEqual(
      table.words(),
      commands.map(each => each.words),
    )
    for (const command of commands) {
      assert.deepEqual(table.find([...command.words, 'an-id', '--json']), command)
      assert.deepEqual(table.byId(command.id), command)
    }
    assert.equal(table.find(['agents', 'lst']), undefined)
    assert.equal(table.byId('list'), undefined)
  })

  it('completes with the options that have a value', () => {
    for (const command of commands)
      for (const { long, required } of parserOf(command).parser.options) {
        const name = long!.slice(2)
        const isField = command.fields.some(each => flagOf(command, each) === name && !isReplaced(command, each))
        if (!isField && !name.startsWith('no-')) assert.equal(VALUED_OPTIONS.has(name), required, name)
      }
  })

  it('prefixes fields that are named like an option of their command', () => {
    const clashes = commands.flatMap(command =>
      command.fields
        .filter(each => each.in !== 'path' && !isReplaced(command, each))
        .flatMap(each =>
          flagOf(command, each).startsWith('field-') ? [`${command.words.join(' ')}: ${each.name}`] : [],
        ),
    )
    assert.deepEqual(clashes, [
      'webhooks create: url',
      'webhooks update: url',
      'webhooks replace: url',
      'conversations messages create: idempotency_key',
      'sessions send: idempotency_key',
      'sessions send-as-operator: idempotency_key',
      'cases comment: body',
      'cases evidence create: url',
    ])
    for (const command of commands) {
      const flags = command.fields.filter(each => each.in !== 'path').map(each => flagOf(command, each))
      assert.equal(new Set([...flags, ...optionNames(command)]).size >= flags.length, true)
    }
  })

  it('shares no words with the commands of the deployment and of this program', async () => {
    const declared = program().commands.flatMap(each =>
      ['secrets', 'oauth'].includes(each.name())
        ? each.commands.map(sub => [`${each.name()} ${sub.name()}`, sub.description()])
        : [[each.name(), each.description()]],
    )
    assert.deepEqual(Object.fromEntries(declared), verbs)
    for (const { words } of commands) {
      assert.ok(!Object.hasOwn(OWN_COMMANDS, words.join(' ')), words.join(' '))
      for (const verb of Object.keys(verbs))
        assert.ok(!verb.split(' ').every((word, index) => words[index] === word), verb)
    }
  })

  it('maps every error code to an exit code', () => {
    const expected: Record<number, number> = {
      ...{ 400: 7, 401: 3, 403: 4, 404: 5, 408: 10, 409: 6, 410: 5, 412: 6, 413: 7, 415: 7, 422: 7, 429: 8 },
      ...{ 500: 9, 501: 9, 502: 9, 503: 10, 504: 9 },
    }
    for (const [code, { status }] of Object.entries<{ status: number }>(description['x-error-codes'])) {
      const own = code.endsWith('_NOT_FOUND') ? 5 : status === 409 && code.startsWith('QUOTA_') ? 8 : expected[status]
      assert.ok(own !== undefined, `${code} ${status}`)
      assert.equal(exitCodeOf(code, status), own, code)
    }
    assert.equal(exitCodeOf('REQUEST_REJECTED', 418), 1)
    assert.equal(exitCodeOf('AGENT_NOT_FOUND', 400), 5)
  })

  describe('values', () => {
    const user = forSuite(() => new User())

    it('read files as text, JSON or YAML, and texts that begin with @', async () => {
      const text = user.file('prompt.md', 'Be kind.\n')
      assert.equal((await flat('agents create', '--instructions', `@${text}`)).instructions, 'Be kind.\n')
      assert.equal((await flat('agents create', '--instructions', '@@home')).instructions, '@home')
      const yaml = user.file('graph.yaml', '- id: a # first\n- id: b\n')
      assert.deepEqual((await flat('orchestrations create', '--nodes', `@${yaml}`)).nodes, [{ id: 'a' }, { id: 'b' }])
      const json = user.file('graph.json', '[{"id":"a"}]')
      assert.deepEqual((await flat('orchestrations create', '--nodes', `@${json}`)).nodes, [{ id: 'a' }])
      const template = user.file('template.yaml', 'resources: {} # none\n')
      assert.equal((await flat('formations create', '--template', `@${template}`)).template, 'resources: {} # none\n')
    })

    it('take a whole body, which options, paths and nulls change', async () => {
      const body = user.file('body.yaml', 'name: a\ndescription: b\n')
      assert.deepEqual(
        await flat(
          'orchestrations create',
          '--body',
          `@${body}`,
          '--name',
          'c',
          '--set',
          'nodes[1].id=x',
          '--set',
          'nodes[0]={"id":1}',
          '--clear',
          'description',
        ),
        { name: 'c', description: null, nodes: [{ id: 1 }, { id: 'x' }] },
      )
      assert.equal(({} as { polluted?: unknown }).polluted, undefined)
    })

    const refused = async (words: string, ...args: string[]) =>
      assert.rejects(async () => flat(words, ...args), { exitCode: 2 }, `${words} ${args.join(' ')}`)

    it('are refused when they cannot be of their field', async () => {
      await refused('agents create', '--max-steps', 'many')
      await refused('agents create', '--max-steps', '1.5')
      await refused('approvals list', '--status', 'unknown')
      await refused('agents create', '--unknown', 'x')
      await refused('agents create', '--body', '{"unknown":1}')
      await refused('agents create', '--body', '[]')
      await refused('agents create', '--body', '{')
      await refused('agents create', '--set', '__proto__.polluted=1')
      await refused('agents create', '--instructions', '@/nowhere/at/all')
      await refused('agents get')
      await refused('agents get', 'a', 'b')
      await refused('agents list', '--tags', 'no pair')
    })
  })

  it('finds values by path', () => {
    const value = { a: [{ b: 'c' }], text: 'x' }
    assert.deepEqual(
      [valueAt(value, 'a[0].b'), valueAt(value, 'a[1].b'), valueAt(value, 'text.length')],
      ['c', undefined, undefined],
    )
  })
})

describe('a command line without a service', function () {
  this.timeout(60_000)
  let user: User
  let url: string
  before(async () => {
    // A port that was free a moment ago.
    const closed = await startScripted({})
    await closed.close()
    url = closed.url
    user = new User(url, 'sk_none')
  })
  after(() => user.close())

  it('exits 10 and names the step and the source of the address', async () => {
    const { code, stderr } = await user.run(['agents', 'list'])
    assert.equal(code, 10)
    assert.match(stderr, /ECONNREFUSED/)
    assert.ok(stderr.includes(`Step: connect of ${url}, the address of MUSTER_URL`), stderr)
    assert.doesNotMatch(stderr, /sk_none|\n {4}at /)
    // A closed proxy, because a service may be at the default address.
    const fresh = new User()
    const unconfigured = await fresh.run(['agents', 'list'], { env: { HTTP_PROXY: url } })
    fresh.close()
    assert.equal(unconfigured.code, 10)
    assert.match(unconfigured.stderr, /, the default address\n {2}Try: muster login --url/)
    const unresolved = await user.run(['agents', 'list', '--url', 'https://name.invalid'])
    assert.match(unresolved.stderr, /Step: resolve/)
  })

  it('exits 2 before any request for wrong usage', async () => {
    const wrong: string[][] = [
      [],
      ['nonsense'],
      ['agents'],
      ['agents', 'lst'],
      ['agents', 'list', '--limit', 'x'],
      ['sessions', 'create', '--name', 'x'],
      ['--columns', 'id', 'nonsense'],
      ['--name', 'x', 'agents', 'list'],
      ['agents', 'delete', 'agent_x'],
      ['agents', 'list', '--url', 'ftp://x'],
      ['agents', 'list', '--url', 'http://muster.example'],
      ['agents', 'list', '--profile', 'none'],
      ['completion', 'cmd'],
      ['profile', 'set', 'url', 'ftp://muster.example'],
      ['login', '--device', '--key'],
    ]
    const codes = await Promise.all(wrong.map(async args => `${(await user.run(args)).code} ${args.join(' ')}`))
    assert.deepEqual(
      codes,
      wrong.map(args => `2 ${args.join(' ')}`),
    )
    for (const args of [
      ['profile', 'set', 'url', 'muster.example'],
      ['agents', 'list', '--url', 'muster.example'],
    ])
      assert.match((await user.run(args)).stderr, /muster\.example is no address\n.*https:/)
    assert.match((await user.run(['agnets', 'list'])).stderr, /Did you mean: muster agents/)
  })

  it('needs to be built, except for the commands of the deployment', async () => {
    const bin = path.dirname(PROGRAM)
    for (const name of ['bin/muster.mjs', 'src/operator/verbs.json'])
      user.file(`copy/${name}`, fs.readFileSync(path.join(bin, '..', name)))
    const { code, stderr } = await user.run(['agents', 'list'], {
      program: path.join(user.directory, 'copy/bin/muster.mjs'),
    })
    assert.deepEqual([code, stderr], [1, 'muster: the command line is not built: run npm run build\n'])
    const loaded = await user.run(['migrate', '--help'], { program: path.join(bin, 'muster.ts') })
    assert.deepEqual([loaded.code, /^Usage: muster migrate/.test(loaded.stdout)], [0, true])
  })

  it('lists the keys of options of JSON', () => {
    const text = commandHelp(commandOf('agents generate')).replace(/\s+/g, ' ')
    assert.match(text, /--messages <list> [^-]*\(keys: role, content[^)]*\)/)
    assert.match(text, /--knowledge-config <json> [^-]*\(keys: [^)]+\)/)
    const objects = commands.flatMap(({ fields }) => fields.filter(({ keys, items }) => keys ?? items?.keys))
    assert.ok(objects.length > 80, String(objects.length))
  })

  it('describes modules, verbs and itself', async () => {
    const all = await user.run(['--help'])
    assert.equal(all.code, 0)
    assert.match(all.stdout, /Operate this deployment:\n {2}up /)
    const secrets = await user.run(['secrets', '--help'])
    assert.match(secrets.stdout, /secrets create/)
    assert.match(secrets.stdout, /Operate this deployment:\n {2}secrets verify/)
    assert.match((await user.run(['help', 'agents', 'create'])).stdout, /--instructions/)
    assert.match((await user.run(['prices', '--help'])).stdout, /prices import/)
    const described = Object.keys(OWN_COMMANDS).map(words => user.run([...words.split(' '), '--help']))
    for (const { stdout } of await Promise.all(described)) assert.match(stdout, /^Usage:/)
  })
})
