import assert from 'node:assert/strict'
import { execFile, execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { parse } from 'yaml'
import { startDouble } from '#local/double/server.ts'
import { readLines, readyPort } from '#local/drills/lines.ts'
import { ADMIN, client } from '../support/app.ts'
import { tcpUrl, testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { endWithThisProcess, root } from '../support/processes.ts'
import { assertAnswers } from '../support/smoke.ts'
import { forSuite } from '../support/suite.ts'

const run = promisify(execFile)
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

const MEGABYTE = 1024 * 1024
/** What the base image has, unpacked: 75 MB of Debian, 127 MB of the program of Node, npm and headers. */
const BASE_MEGABYTES = 225
const IMAGE_MEGABYTES = 350

/** User and group of the image. */
const ID = 10_001

const dockerfile = read('Dockerfile')
const lastStage = dockerfile.slice(dockerfile.lastIndexOf('\nFROM '))
const instructionsOf = (text: string, name: string): string[] =>
  [...text.matchAll(/^([A-Z]+) (.*)$/gm)].filter(([, each]) => each === name).map(([, , rest]) => rest)

/** What the builder does not get of the folders that are copied. */
const ignored = read('.dockerignore')
  .split('\n')
  .filter(line => line && !/^[#*!]/.test(line))

/** Copies the production packages of this checkout, as `npm ci --omit=dev` installs them. */
function copyPackages(target: string): void {
  const packages = Object.entries<{ dev?: boolean; link?: boolean }>(JSON.parse(read('package-lock.json')).packages)
  for (const [at, { dev, link }] of packages) {
    const source = path.join(root, at)
    if (!at.startsWith('node_modules/') || dev || link || !fs.existsSync(source)) continue
    const filter = (file: string) => !file.slice(source.length).includes('/node_modules')
    fs.cpSync(source, path.join(target, at), { recursive: true, filter })
  }
}

/** Lays out in a folder what the last stage copies, readable by all users and not writable. */
function layOut(folder: string): void {
  const app = path.join(folder, 'app')
  for (const instruction of instructionsOf(lastStage, 'COPY')) {
    const words = instruction.split(' ').filter(word => !word.startsWith('--'))
    const target = words.pop() as string
    for (const source of words.map(word => word.replace(/^\/app\//, ''))) {
      if (source === '/data') continue
      if (source === 'node_modules') copyPackages(app)
      else {
        const filter = (file: string) => !ignored.includes(path.relative(root, file))
        const to = path.join(app, target.endsWith('/') ? path.join(target, source) : target)
        fs.cpSync(path.join(root, source), to, { recursive: true, filter })
      }
    }
  }
  const [, ...removals] = instructionsOf(dockerfile, 'RUN')[0].split(' && ')
  for (const removal of removals) execFileSync('sh', ['-c', removal], { cwd: app })
  // The base image has Node, at a place that every user reaches.
  fs.mkdirSync(path.join(folder, 'bin'))
  fs.copyFileSync(process.execPath, path.join(folder, 'bin/node'))
  execFileSync('chmod', ['-R', 'a+rX,a-w', app, path.join(folder, 'bin')])
}

describe('the image', function () {
  this.timeout(240_000)
  const { services } = parse(read('compose.yaml'), { merge: true })
  const database = `muster_test_image_${process.pid}`
  const double = forSuite(() => startDouble({}))
  let folder: string
  let environment: Record<string, string>

  before(async () => {
    folder = fs.mkdtempSync(path.join(tmpdir(), 'muster-image-'))
    fs.chmodSync(folder, 0o755)
    layOut(folder)
    const isRoot = process.getuid?.() === 0
    const given = instructionsOf(lastStage, 'ENV')[0].split(' ')
    for (const name of ['tmp', 'data']) {
      fs.mkdirSync(path.join(folder, name))
      if (isRoot) fs.chownSync(path.join(folder, name), ID, ID)
    }
    environment = {
      ...testEnvironment(tcpUrl(await createDatabase(database)).href),
      ...Object.fromEntries(given.map(each => each.split('='))),
      NODE_COMPILE_CACHE: path.join(folder, 'tmp/compile'),
      TMPDIR: path.join(folder, 'tmp'),
      HOME: path.join(folder, 'data'),
      BASE_URL: 'http://localhost',
      PATH: `${path.join(folder, 'bin')}:/usr/bin:/bin`,
    }
  })
  after(async () => {
    await dropDatabase(database)
    fs.rmSync(folder, { recursive: true, force: true })
  })

  /** Options of a process in the layout, as the user of the image where this process may change it. */
  const options = (env: Record<string, string> = {}) => ({
    cwd: path.join(folder, 'app'),
    env: { ...environment, ...env },
    ...(process.getuid?.() === 0 && { uid: ID, gid: ID }),
  })
  const [entryPoint]: string[] = JSON.parse(instructionsOf(lastStage, 'ENTRYPOINT')[0])

  /** Starts a service of compose.yaml, and waits for the port of its health. */
  async function start(name: 'web' | 'worker') {
    const child = spawn(path.join(folder, 'app', entryPoint), services[name].command, options())
    const output: string[] = []
    endWithThisProcess(child)
    const exited = once(child, 'exit')
    const port = await new Promise<number>((resolve, reject) => {
      readLines(child, line => {
        output.push(line)
        const found = readyPort(line)
        if (found !== null) resolve(found)
      })
      child.once('exit', () => reject(new Error(output.join('\n'))))
    })
    return { child, output, exited, port }
  }

  it(`adds at most ${IMAGE_MEGABYTES - BASE_MEGABYTES} MB to its base`, () => {
    const files = fs.readdirSync(path.join(folder, 'app'), { recursive: true, withFileTypes: true })
    const sizes = files
      .filter(each => each.isFile())
      .map(each => fs.statSync(path.join(each.parentPath, each.name)).size)
    const megabytes = sizes.reduce((a, b) => a + b, 0) / MEGABYTE
    assert.ok(megabytes <= IMAGE_MEGABYTES - BASE_MEGABYTES, `${megabytes.toFixed(1)} MB`)
  })

  it('runs migrate, web and worker of compose.yaml on read-only files as its user, and drains', async () => {
    const { stdout } = await run(path.join(folder, 'app', entryPoint), services.migrate.command, options())
    assert.match(stdout, /ran 0001_core/)
    const [web, worker] = await Promise.all([start('web'), start('worker')])
    const url = `http://127.0.0.1:${web.port}`
    for (const { port } of [web, worker])
      for (const at of ['healthz', 'readyz']) assert.equal((await fetch(`http://127.0.0.1:${port}/${at}`)).status, 200)
    for (const at of ['/app', '/docs', '/docs/reference', '/packages/cli.tgz'])
      assert.equal((await fetch(`${url}${at}`)).status, 200, at)
    assert.equal((await client(url, null).post('/users/bootstrap', ADMIN)).status, 201)
    await assertAnswers(url, ADMIN, double.url)

    const [, check] = instructionsOf(lastStage, 'HEALTHCHECK')[0].split(' CMD ')
    const [program, ...args]: string[] = JSON.parse(check)
    const health = (env: Record<string, string>) =>
      spawnSync(path.join(folder, 'bin', program), args, options({ PORT: '1', WORKER_HEALTH_PORT: '1', ...env })).status
    assert.deepEqual(
      [health({ PORT: String(web.port) }), health({ WORKER_HEALTH_PORT: String(worker.port) }), health({})],
      [0, 0, 1],
    )
    for (const { child, exited } of [web, worker]) {
      child.kill('SIGTERM')
      assert.deepEqual(await exited, [0, null])
    }
    const errors = [...web.output, ...worker.output].filter(line => /"level":"(error|fatal)"/.test(line))
    assert.deepEqual(errors, [])
  })

  it('has the commands of muster, without a model double', async () => {
    const command = (...args: string[]) => run(path.join(folder, 'app', entryPoint), args, options())
    assert.equal((await command('--version')).stdout.trim(), JSON.parse(read('package.json')).version)
    const file = path.join(folder, 'data/.env')
    assert.match((await command('init-env', file)).stdout, /^added .*POSTGRES_PASSWORD/)
    assert.equal(fs.statSync(file).mode & 0o777, 0o600)
    await assert.rejects(command('llm-double', 'serve'), { code: 1 })
  })

  it('passes the linters of Dockerfile and compose file', async () => {
    const bin = path.join(root, 'node_modules/.bin')
    const environment = { ...process.env, PATH: `${path.dirname(process.execPath)}:${process.env.PATH}` }
    const lint = await run(path.join(bin, 'dockerfilelint'), ['-o', 'json', 'Dockerfile'], {
      cwd: root,
      env: environment,
    })
    assert.equal(JSON.parse(lint.stdout).totalIssues, 0, lint.stdout)
    // Validates by the schema of the Compose Specification, which the package has. Its warnings are of order and quotes.
    await run(path.join(bin, 'dclint'), ['compose.yaml', '--quiet'], { cwd: root, env: environment })
  })

  const hasEngine = spawnSync('docker', ['info'], { timeout: 10_000 }).status === 0
  it('starts by `docker compose up` within 90 s and drains (needs a container engine)', async function () {
    if (!hasEngine) return this.skip()
    const checkout = path.join(folder, 'checkout')
    await run('git', ['clone', '--quiet', '--depth', '1', `file://${root}`, checkout])
    const compose = (...args: string[]) =>
      run('docker', ['compose', '--project-name', `muster-test-${process.pid}`, ...args], { cwd: checkout })
    await run(process.execPath, [path.join(root, 'bin/muster.mjs'), 'init-env', path.join(checkout, '.env')])
    try {
      await compose('build')
      const startedAt = Date.now()
      await compose('up', '--detach', '--wait')
      assert.equal((await client('http://127.0.0.1:5047', null).post('/users/bootstrap', ADMIN)).status, 201)
      assert.equal((await fetch('http://127.0.0.1:5047/app')).status, 200)
      assert.ok(Date.now() - startedAt < 90_000)
      await compose('stop', 'web', 'worker')
      const { stdout } = await compose('ps', '--all', '--format', '{{.Service}} {{.ExitCode}}')
      assert.match(stdout, /^web 0$/m)
      assert.match(stdout, /^worker 0$/m)
    } finally {
      await compose('down', '--volumes')
    }
  })
})
