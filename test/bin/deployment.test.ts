import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { parse } from 'yaml'
import { loadConfig } from '#config.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { CONSOLE_INPUTS } from '#local/build.ts'

const root = path.resolve(import.meta.dirname, '../..')
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')
const scripts: Record<string, string> = JSON.parse(read('package.json')).scripts

/** What `npm run` starts, without what the shell adds: the program and its arguments. */
const started = (script: string): string[] => scripts[script].replace(/^.*exec /, '').split(' ')

const settingNames: readonly string[] = settingRows().map(({ name }) => name)

/** Seconds that a process may take to end: its grace and five more. */
const STOP_SECONDS = Number(loadConfig({}).SHUTDOWN_GRACE_MS) / 1000 + 5

describe('files of a deployment', () => {
  describe('bin/launch', () => {
    it('becomes Node, with its flags and with settings that are not given', async () => {
      const shown = '[process.pid, process.execArgv[0], process.env.MALLOC_ARENA_MAX, process.env.NODE_COMPILE_CACHE]'
      const launched = async (env: NodeJS.ProcessEnv) => {
        const { PATH } = process.env
        const running = promisify(execFile)('bin/launch', ['-p', `JSON.stringify(${shown})`], {
          cwd: root,
          env: { PATH, ...env },
        })
        const [pid, ...more] = JSON.parse((await running).stdout)
        assert.equal(pid, running.child.pid)
        return more
      }
      assert.deepEqual(await launched({}), ['--preserve-symlinks', '2', 'node_modules/.cache/compile'])
      const given = { MALLOC_ARENA_MAX: '4', NODE_COMPILE_CACHE: path.join(tmpdir(), 'none') }
      assert.deepEqual(await launched(given), ['--preserve-symlinks', ...Object.values(given)])
    })

    it('names the version that it needs in one line on another Node, as the operator commands do', async () => {
      const folder = fs.mkdtempSync(path.join(tmpdir(), 'node-'))
      try {
        fs.writeFileSync(path.join(folder, 'node'), '#!/bin/sh\necho v22.20.0\n', { mode: 0o755 })
        const launched = promisify(execFile)('bin/launch', ['src/web.ts'], {
          cwd: root,
          env: { PATH: `${folder}:/bin` },
        })
        await assert.rejects(launched, {
          code: 1,
          stdout: '',
          stderr: 'muster: Node 24 or later is required, this is v22.20.0\n',
        })
        const older = `Object.defineProperty(process, 'versions', { value: { node: '22.20.0' } })`
        const args = ['--import', `data:text/javascript,${encodeURIComponent(older)}`, 'bin/muster.mjs', 'migrate']
        await assert.rejects(promisify(execFile)(process.execPath, args, { cwd: root }), {
          code: 1,
          stderr: `muster: Node 24 or later is required, this is ${process.version}\n`,
        })
      } finally {
        fs.rmSync(folder, { recursive: true })
      }
    })

    it('alone has these flags', () => {
      const flags = read('bin/launch').match(/--[a-z-]+/g) ?? assert.fail()
      const units = fs.globSync('deploy/systemd/*', { cwd: root })
      const files = ['package.json', 'Procfile', 'Dockerfile', 'compose.yaml', 'test/support/processes.ts', ...units]
      for (const file of [...files, 'test/bench/http.ts'])
        for (const flag of [...flags, 'MALLOC_ARENA_MAX']) assert.ok(!read(file).includes(flag), `${file}: ${flag}`)
    })
  })

  describe('Dockerfile', () => {
    /** Instructions, comments left out, continued lines joined. */
    const instructions = read('Dockerfile')
      .replaceAll(/^#.*\n/gm, '')
      .replaceAll('\\\n', ' ')
      .split('\n')
      .filter(line => line.trim() !== '')
      .map(line => {
        const [, name, rest] = /^([A-Z]+) (.+)$/.exec(line) ?? assert.fail(line)
        return { name, rest: rest as string }
      })
    const stages = instructions.reduce<{ name: string; rest: string }[][]>((found, each) => {
      if (each.name === 'FROM') found.push([])
      found.at(-1)?.push(each)
      return found
    }, [])
    const last = stages.at(-1) ?? []
    const only = (name: string) => last.filter(each => each.name === name).map(({ rest }) => rest)

    it('has instructions that there are, in three stages on the Node of .nvmrc', () => {
      const known = ['FROM', 'LABEL', 'WORKDIR', 'COPY', 'RUN', 'ENV', 'USER', 'EXPOSE', 'VOLUME', 'HEALTHCHECK']
      for (const { name, rest } of instructions)
        assert.ok([...known, 'ENTRYPOINT', 'CMD'].includes(name), `${name} ${rest}`)
      assert.equal(stages.length, 3)
      const images = new Set(stages.map(([{ rest }]) => rest.split(' ')[0]))
      assert.equal(images.size, 1)
      const pinned = new RegExp(`^node:${read('.nvmrc').trim()}\\.\\d+\\.\\d+-bookworm-slim@sha256:[0-9a-f]{64}$`)
      assert.match([...images][0], pinned)
    })

    it('runs what `npm run` starts by the name of a program, in production, as a user without rights', () => {
      assert.deepEqual(
        ['ENTRYPOINT', 'CMD'].map(name => JSON.parse(only(name)[0])),
        [['bin/container'], ['web']],
      )
      for (const name of ['web', 'worker'])
        assert.ok(read('bin/container').includes(`  ${name}) shift; exec ${started(name).join(' ')} "$@" ;;`), name)
      assert.ok(read('bin/container').includes('  *) exec node bin/muster.mjs "$@" ;;'))
      assert.deepEqual(started('migrate'), ['node', 'bin/muster.mjs', 'migrate'])
      assert.deepEqual(only('USER'), ['10001:10001'])
      assert.ok(last.findIndex(({ name }) => name === 'USER') > last.findLastIndex(({ name }) => name === 'COPY'))
      assert.match(only('ENV')[0], /\bNODE_ENV=production\b/)
      assert.deepEqual(only('RUN'), [])
      assert.ok(
        only('LABEL').includes(`org.opencontainers.image.version="${JSON.parse(read('package.json')).version}"`),
      )
    })

    it('builds the console and the reference of all that they are made of', () => {
      const copied = stages[1].filter(({ name }) => name === 'COPY').flatMap(({ rest }) => rest.split(' ').slice(0, -1))
      for (const input of CONSOLE_INPUTS) assert.ok(copied.includes(input.split('/')[0]), input)
      assert.deepEqual(stages[1].at(-1), { name: 'RUN', rest: 'node scripts/build.ts && mkdir /data' })
      for (const built of ['docs/dist', 'console/dist', 'packages/dist', 'cli/dist'])
        assert.ok(only('COPY').includes(`--from=build /app/${built} ./${built}`), built)
    })

    it('copies only paths that exist and reach the builder, and no development program', () => {
      const [first, ...rest] = read('.dockerignore')
        .replaceAll(/^#.*\n/gm, '')
        .trim()
        .split('\n')
      assert.equal(first, '*')
      const reached = rest.filter(each => each.startsWith('!'))
      const sources = instructions
        .filter(({ name, rest }) => name === 'COPY' && !rest.startsWith('--from'))
        .flatMap(({ rest }) => rest.split(' ').slice(0, -1))
      for (const source of sources) {
        assert.ok(fs.existsSync(path.join(root, source)), source)
        assert.ok(
          reached.some(each => source === each.slice(1) || source.startsWith(`${each.slice(1)}/`)),
          `${source} does not reach the builder`,
        )
      }
      for (const each of reached) assert.ok(sources.includes(each.slice(1)), `${each} is not copied`)
      assert.deepEqual(rest.slice(reached.length), ['bin/llm-double.ts', 'src/local/double'])
      for (const each of rest.slice(reached.length)) assert.ok(fs.existsSync(path.join(root, each)), each)
    })
  })

  describe('compose.yaml', () => {
    const compose = parse(read('compose.yaml'), { merge: true })
    const { postgres, migrate, web, worker } = compose.services

    it('has keys that there are, and settings that Muster has', () => {
      const keys = [
        ...[
          'build',
          'image',
          'init',
          'read_only',
          'tmpfs',
          'cap_drop',
          'security_opt',
          'env_file',
          'environment',
          'command',
        ],
        ...['restart', 'depends_on', 'stop_grace_period', 'ports', 'healthcheck', 'volumes', 'shm_size'],
      ]
      assert.deepEqual(Object.keys(compose), ['name', 'x-muster', 'services', 'volumes'])
      for (const [name, service] of Object.entries<any>(compose.services)) {
        for (const key of Object.keys(service)) assert.ok(keys.includes(key), `${name}: ${key}`)
        for (const { condition, ...more } of Object.values<any>(service.depends_on ?? {})) {
          assert.ok(['service_healthy', 'service_completed_successfully'].includes(condition))
          assert.deepEqual(more, {})
        }
        for (const on of Object.keys(service.depends_on ?? {})) assert.ok(compose.services[on], on)
      }
      for (const service of [migrate, web, worker])
        for (const [name, value] of Object.entries(service.environment)) {
          assert.ok(name === 'DATABASE_URL' || settingNames.includes(name), name)
          assert.equal(typeof value, 'string', name)
        }
    })

    it('migrates once, before web and worker', () => {
      assert.deepEqual(migrate.command, ['migrate'])
      assert.deepEqual([migrate.restart, migrate.depends_on], ['no', { postgres: { condition: 'service_healthy' } }])
      for (const [name, service] of Object.entries({ web, worker })) {
        assert.deepEqual(service.command, [name])
        assert.deepEqual(service.depends_on, { migrate: { condition: 'service_completed_successfully' } })
        assert.equal(service.environment.AUTO_MIGRATE, 'false')
        assert.ok(Number.parseInt(service.stop_grace_period, 10) >= STOP_SECONDS)
      }
    })

    it('gives the processes no writable path and no privileges, and checks whether they are ready', () => {
      for (const service of [migrate, web, worker]) {
        assert.deepEqual([service.read_only, service.cap_drop, service.tmpfs], [true, ['ALL'], ['/tmp']])
        assert.deepEqual(service.security_opt, ['no-new-privileges:true'])
        assert.deepEqual([service.env_file, service.volumes], ['.env', undefined])
      }
      assert.ok(web.healthcheck.test.at(-1).includes(`:${web.environment.PORT}/readyz`))
      assert.ok(worker.healthcheck.test.at(-1).includes(`:${worker.environment.WORKER_HEALTH_PORT}/readyz`))
      assert.deepEqual(web.ports, [`127.0.0.1:${web.environment.PORT}:${web.environment.PORT}`])
      assert.match(postgres.image, /^pgvector\/pgvector:\d+\.\d+\.\d+-pg17@sha256:[0-9a-f]{64}$/)
      // The directory that the image of PostgreSQL 17 keeps its cluster in.
      assert.deepEqual(postgres.volumes, ['postgres:/var/lib/postgresql/data'])
      assert.equal(postgres.ports, undefined)
      assert.deepEqual(Object.keys(compose.volumes), ['postgres'])
    })
  })

  describe('units of systemd', () => {
    /** Sections of a unit, each with its directives. */
    const unit = (name: string) => {
      const sections: Record<string, Record<string, string>> = {}
      let section = ''
      for (const line of read(`deploy/systemd/muster-${name}.service`).split('\n')) {
        if (line === '' || line.startsWith('#')) continue
        const header = /^\[(\w+)\]$/.exec(line)
        if (header) {
          section = header[1] as string
          sections[section] = {}
          continue
        }
        const [, key, value] = /^([A-Za-z]+)=(.*)$/.exec(line) ?? assert.fail(line)
        assert.ok(sections[section] && !((key as string) in sections[section]), line)
        Object.assign(sections[section] as object, { [key as string]: value })
      }
      return sections as Record<'Unit' | 'Service' | 'Install', Record<string, string>>
    }

    it('run the commands of `npm run`, after migrations that run once', () => {
      const migrations = unit('migrate').Service
      assert.deepEqual([migrations.Type, migrations.RemainAfterExit], ['oneshot', 'yes'])
      assert.equal(migrations.ExecStart, `/usr/bin/${started('migrate').join(' ')}`)
      for (const name of ['web', 'worker']) {
        const { Unit, Service, Install } = unit(name)
        assert.equal(Service.ExecStart, `${Service.WorkingDirectory}/${started(name).join(' ')}`)
        for (const key of ['Requires', 'After']) assert.equal(Unit[key], 'muster-migrate.service')
        assert.match(Service.Environment, /\bNODE_ENV=production AUTO_MIGRATE=false\b/)
        assert.ok(Number(Service.TimeoutStopSec) >= STOP_SECONDS)
        assert.deepEqual([Service.User, Service.NoNewPrivileges, Service.ProtectSystem], ['muster', 'yes', 'strict'])
        assert.equal(Install.WantedBy, 'multi-user.target')
      }
    })
  })
})
