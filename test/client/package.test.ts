import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'
import ts from 'typescript'

const root = path.resolve(import.meta.dirname, '../..')
const read = (file: string): string => fs.readFileSync(path.join(root, file), 'utf8')
const run = promisify(execFile)

type Field = { name: string; in: string; required?: boolean; enum?: unknown[] }

type Command = { id: string; words: string[]; fields: Field[] }

const description = JSON.parse(read('client/openapi.json'))
const { commands } = JSON.parse(read('client/commands.json')) as { commands: Command[] }
const OPTIONS: ts.CompilerOptions = {
  target: ts.ScriptTarget.ES2023,
  lib: ['lib.es2023.d.ts', 'lib.dom.d.ts', 'lib.dom.asynciterable.d.ts'],
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  types: [],
  strict: true,
  noEmit: true,
}

const sources = new Map<string, string>()
const host = ts.createCompilerHost(OPTIONS)
const original = { fileExists: host.fileExists, readFile: host.readFile, getSourceFile: host.getSourceFile }
const parsed = new Map<string, ts.SourceFile | undefined>()
host.fileExists = file => sources.has(file) || original.fileExists(file)
host.readFile = file => sources.get(file) ?? original.readFile(file)
host.getSourceFile = (file, ...rest) => {
  const text = sources.get(file)
  if (text !== undefined) return ts.createSourceFile(file, text, rest[0])
  if (!parsed.has(file)) parsed.set(file, original.getSourceFile(file, ...rest))
  return parsed.get(file)
}

const DECLARED = `declare const muster: import('@muster/client').Muster\n`

/**
 * Checks texts with the client's types, as an application in this repository would be; returns the errors of each. One
 * program of all: its types are worked out once.
 */
function checkEach(texts: string[]): string[][] {
  const files = texts.map((text, n) => {
    const file = path.join(root, `test/client/checked-${n}.mts`)
    sources.set(file, (/const muster =/.test(text) ? '' : DECLARED) + text)
    return file
  })
  const program = ts.createProgram(files, OPTIONS, host)
  return files.map((file, n) =>
    ts
      .getPreEmitDiagnostics(program, program.getSourceFile(file))
      .map(
        each => `${ts.flattenDiagnosticMessageText(each.messageText, ' ')}: ${texts[n].slice(each.start ?? 0, 200)}`,
      ),
  )
}

const check = (text: string): string[] => checkEach([text])[0]

const camel = (word: string): string => word.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())

const methodOf = ({ words }: Command): string => `muster.${words.map(camel).join('.')}`

/** A call of an operation with its declared example. */
function exampleOf({ id, fields, words }: Command): string {
  const all = Object.values<any>(description.paths).flatMap(each => Object.values<any>(each))
  const { requestBody, 'x-stream': stream } = all.find(each => each.operationId === id)
  const content = requestBody?.content ?? {}
  const example = content['application/json']?.example ?? content['multipart/form-data']?.example
  const args: Record<string, unknown> = {}
  for (const { name, in: part, required, enum: values } of fields)
    if (part === 'path' || (part === 'query' && required)) args[name] = values?.[0] ?? 'id'
  const outside = fields.filter(each => each.in !== 'body').map(each => each.name)
  for (const [name, value] of Object.entries(example ?? {}))
    if (!(name === stream?.selected_by?.name)) args[outside.includes(name) ? `body_${name}` : name] = value
  const isForm = content['multipart/form-data'] !== undefined
  const isFile = requestBody && !content['application/json']
  if (isFile) delete args.file
  const entries = Object.entries(args).map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`)
  if (isFile) entries.push(`file: new Blob(['x'])`)
  if (isFile && !isForm) entries.push(`content_type: ${JSON.stringify(Object.keys(content)[0])}`)
  return `${methodOf({ words } as Command)}(${entries.length > 0 ? `{ ${entries.join(', ')} }` : ''})`
}

describe('the package of the client', function () {
  this.timeout(180_000)

  it('has a method for each operation, which accepts the declared example', () => {
    assert.ok(commands.length > 480, String(commands.length))
    assert.deepEqual(check(commands.map(command => `void ${exampleOf(command)}`).join('\n')), [])
  })

  it('has the action of each operation, which policies allow', async () => {
    const functions: any = await import('../../client/dist/generated/operations.js')
    const operations = Object.values<any>(description.paths).flatMap(each => Object.values<any>(each))
    const expected = new Map(operations.map(each => [each.operationId, each['x-iam-action'] ?? undefined]))
    assert.equal(functions.listAgents.action, 'agents:ListAgents')
    for (const [name, { action }] of Object.entries<any>(functions))
      assert.equal(action, expected.get(expected.has(name) ? name : name.replace(/Stream$/, '')), name)
  })

  it('compiles the examples of its page', () => {
    const blocks = [...read('docs/client.md').matchAll(/^```ts\n(.*?)^```$/gms)].map(match => match[1])
    assert.ok(blocks.length > 8)
    assert.deepEqual(checkEach(blocks.map(block => `${block}\nexport {}`)).flat(), [])
  })

  it('refuses wrong and missing properties, stream, and names of other events', () => {
    const refused: [string, RegExp][] = [
      [`void muster.actors.create({ nam: 'x' })`, /nam/],
      [`void muster.actors.get({})`, /actor_id/],
      [`void muster.actors.get()`, /argument/],
      [`void muster.actors.list({ limit: true })`, /not assignable/],
      [`void muster.agents.generate({ agent_id: 'a', prompt: 'x', stream: true })`, /stream/],
      [
        `for await (const e of muster.agents.generateStream({ agent_id: 'a' })) if (e.event === 'finished') break`,
        /no overlap/,
      ],
      [
        `for await (const e of muster.agents.generateStream({ agent_id: 'a' })) if (e.event === 'delta') e.data.generation_id`,
        /generation_id/,
      ],
      [`const a: string = (await muster.actors.get({ actor_id: 'a' })).created`, /created/],
      [`muster.actors.create({ name: 'x' }).settled()`, /settled/],
      [`muster.apiKeys`, /apiKeys/],
    ]
    const accepted = `const run = await muster.orchestrationRuns.create({ orchestration_id: 'o' }).settled()
const status: 'succeeded' | string = run.status
const turn = muster.agents.generateStream({ agent_id: 'a', prompt: 'x' })
for await (const e of turn) if (e.event === 'delta') { const text: string | undefined | null = e.data.choices[0].delta.content; void text }
const { output } = await turn.result()
export { output, status }`
    const errors = checkEach([accepted, ...refused.map(([text]) => `${text}\nexport {}`)])
    assert.deepEqual(errors.shift(), [])
    for (const [n, [text, message]] of refused.entries()) {
      const [error, ...others] = errors[n]
      assert.match(error ?? 'no error', message, text)
      assert.equal(others.length, 0, others.join('\n'))
    }
  })

  it('adds less than 6 s to the type check of an application with 50 calls', () => {
    // An empty application has parsed the libraries, and nothing of the client.
    for (const file of parsed.keys()) if (file.includes('/client/')) parsed.delete(file)
    const start = process.cpuUsage()
    assert.deepEqual(
      check(
        commands
          .slice(0, 50)
          .map(command => `void ${exampleOf(command)}`)
          .join('\n'),
      ),
      [],
    )
    const { user, system } = process.cpuUsage(start)
    assert.ok((user + system) / 1e6 < 6, `${(user + system) / 1e6} s`)
  })

  it('is small: at most 35 KB compressed with all operations, 9 KB with two', async () => {
    const bundled = async (contents: string): Promise<number> => {
      const stdin = { contents, resolveDir: root }
      const { outputFiles } = await build({
        stdin,
        bundle: true,
        minify: true,
        write: false,
        format: 'esm',
        platform: 'browser',
      })
      return gzipSync(outputFiles[0].contents).length
    }
    const all = await bundled(`export * from '@muster/client'`)
    const two = await bundled(`import { Client } from '@muster/client'
import { createAgent, listAgents } from '@muster/client/operations'
const client = new Client({ baseUrl: 'https://muster.example' })
for await (const agent of listAgents(client)) console.log(agent)
console.log(await createAgent(client, { name: 'x' }))`)
    assert.ok(all > 10_000 && all <= 35 * 1024, `${all}`)
    assert.ok(two > 2000 && two <= 9 * 1024, `${two}`)
  })

  it('is at most 1,500 lines of ours, without names of Node', () => {
    const files = fs.readdirSync(path.join(root, 'client/src')).filter(file => file.endsWith('.ts'))
    const lines = files.map(file => read(`client/src/${file}`).match(/^.*\S.*$/gm)?.length ?? 0)
    assert.ok(lines.reduce((sum, each) => sum + each, 0) <= 1500)
    for (const file of fs.readdirSync(path.join(root, 'client/dist'), { recursive: true, encoding: 'utf8' }))
      if (file.endsWith('.js'))
        assert.doesNotMatch(
          read(`client/dist/${file}`).replace(/\/\*[\s\S]*?\*\//g, ''),
          /\bBuffer\b|\bprocess\.|['"]node:/,
          file,
        )
  })

  it('has the version of the service and no dependencies', () => {
    const own = JSON.parse(read('client/package.json'))
    assert.equal(own.version, JSON.parse(read('package.json')).version)
    assert.equal(own.dependencies, undefined)
    for (const { types, default: code } of Object.values<any>(own.exports))
      for (const file of [types, code]) assert.ok(fs.existsSync(path.join(root, 'client', file)), file)
  })

  it('is not built where the development packages are missing, which is no error', async () => {
    const empty = fs.mkdtempSync(path.join(tmpdir(), 'client-'))
    try {
      fs.cpSync(path.join(root, 'scripts'), path.join(empty, 'scripts'), { recursive: true })
      const { stdout, stderr } = await run(process.execPath, ['scripts/prepare.mjs'], { cwd: empty })
      assert.match(stdout, /^muster: not built, .+\n$/)
      assert.equal(stderr, '')
    } finally {
      fs.rmSync(empty, { recursive: true })
    }
  })

  it('has the commands of the description, for the command line', () => {
    const known = read('test/surfaces/commands.txt').trim().split('\n')
    const aliases = Object.values<any>(description.paths)
      .flatMap(each => Object.values<any>(each))
      .flatMap(each => (each['x-alias-of'] ? [each.operationId] : []))
    const expected = known.filter(line => !aliases.includes(line.split(' ')[0]))
    assert.deepEqual(commands.map(({ id, words }) => `${id} ${words.join(' ')}`).sort(), expected.sort())
  })

  it('is the same in every build of the same sources, and is not built again', async () => {
    const files = [
      ...['client/openapi.json', 'client/commands.json', 'client/src/generated', 'client/dist'],
      ...['cli/dist', 'console/dist', 'packages/dist'],
    ]
    const contents = (directory: string) =>
      files
        .flatMap(file => {
          const full = path.join(directory, file)
          if (!fs.statSync(full).isDirectory()) return [file]
          return fs
            .readdirSync(full, { recursive: true, encoding: 'utf8' })
            .map(name => path.join(file, name))
            .filter(name => fs.statSync(path.join(directory, name)).isFile())
        })
        .sort()
        .map(name => [name, fs.readFileSync(path.join(directory, name)).toString('latin1')])
    const copy = fs.mkdtempSync(path.join(tmpdir(), 'client-'))
    try {
      const tracked = [
        ...['client/build', 'client/python', 'client/src', 'client/package.json', 'client/tsconfig.json'],
        ...['bin', 'cli/price-book.json', 'client/README.md', 'LICENSE'],
        ...['console/index.html', 'console/package.json', 'console/src', 'console/vite.config.ts', 'console/fields.ts'],
        ...['console/tsconfig.json', 'tsconfig.json', 'cli/src'],
      ]
      for (const name of [...tracked, 'scripts', 'src', 'sql', 'docs', 'package.json', 'package-lock.json'])
        fs.cpSync(path.join(root, name), path.join(copy, name), { recursive: true })
      fs.rmSync(path.join(copy, 'client/src/generated'), { recursive: true })
      fs.symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'))
      const build = () => run(process.execPath, ['scripts/build.ts'], { cwd: copy })
      const first = await build()
      assert.match(first.stdout, /description: built[\s\S]*client: built[\s\S]*packages: built[\s\S]*console: built/)
      assert.deepEqual(contents(copy), contents(root))
      assert.equal((await build()).stdout, '')
    } finally {
      fs.rmSync(copy, { recursive: true, force: true })
    }
  })
})
