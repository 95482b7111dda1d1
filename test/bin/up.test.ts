import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openPool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { CONSOLE_INPUTS, hashFile, hashFiles } from '#local/build.ts'
import { findEmbedded, stopEmbedded } from '#local/postgres.ts'
import { REFUSED_PORTS } from '#operator/ports.ts'
import { client, eventually } from '../support/app.ts'
import { launch, type Running } from '../support/commands.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

const root = path.resolve(import.meta.dirname, '../..')

type Report = {
  url: string
  model: { url: string } | null
  admin: { username: string; password: string } | null
  sign_in_url: string | null
  demo: {
    project_id: string
    agent_id: string
    session_id: string
    key: string | null
    vendors: { agent_id: string; provider: string; model: string; variable: string }[]
  } | null
  sample_project_id: string | null
}

describe('muster up', function () {
  this.timeout(60_000)

  const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-up-'))
  const data = path.join(base, 'data')
  const pidFile = path.join(data, 'postgres/postmaster.pid')
  const started: Running[] = []

  before(() => fs.chmodSync(base, 0o755))
  after(async () => {
    for (const { child } of started) child.kill('SIGKILL')
    await stopEmbedded(path.join(data, 'postgres'))
    fs.rmSync(base, { recursive: true, force: true })
  })

  function start(args: string[] = [], env: Record<string, string> = {}): Running {
    const running = launch('bin/muster.ts', ['up', '--data', data, '--port', '0', '--json', ...args], env)
    started.push(running)
    return running
  }

  /** Waits for the report that `up` prints once it answers. */
  const reported = (running: Running): Promise<Report> =>
    eventually<Report | null>(
      () => {
        assert.equal(running.child.exitCode, null, running.output.stderr)
        return running.output.stdout.endsWith('}\n') ? JSON.parse(running.output.stdout) : null
      },
      { within: 50_000, what: 'the report of up' },
    )

  const say = (report: Report, key: string, message: string) =>
    client(report.url, key).post(`/sessions/${report.demo?.session_id}/messages?wait=true`, { message })

  const isOpen = (host: string, url: string) =>
    new Promise<boolean>(resolve => {
      const socket = net.connect(Number(new URL(url).port), host, () => {
        socket.destroy()
        resolve(true)
      })
      socket.once('error', () => resolve(false))
    })

  let first: Report
  let key: string
  let token: string

  it('brings a database, a first admin and a demo that can be talked to', async () => {
    const running = start()
    first = await reported(running)
    assert.equal((await client(first.url, null).get('//readyz')).status, 200)
    const { issuer } = (await client(first.url, null).get('//.well-known/oauth-authorization-server')).body
    assert.equal(issuer, first.url, 'sign-in in a browser needs the host that cookies are of')

    const signedIn = await client(first.url, null).post('/users/login', first.admin as object)
    assert.equal(signedIn.status, 200)
    token = signedIn.body.token
    assert.equal(first.sign_in_url?.split('#')[0], `${first.url}/app`)
    key = first.demo?.key as string
    const said = await say(first, key, 'hello')
    assert.equal(said.status, 201, JSON.stringify(said.body))
    assert.equal(said.body.reply.content, 'echo: hello')

    const database = await openPool({
      databaseUrl: (await findEmbedded(path.join(data, 'postgres'))) as string,
      connections: 1,
    })
    const addresses = rawQuery(`select distinct client_addr from pg_stat_activity where datname = 'muster'`)
    assert.deepEqual(await database.any(addresses), [{ client_addr: null }], 'connections by TCP')
    await database.end()

    assert.deepEqual(await Promise.all(['127.0.0.1', '127.0.0.2'].map(host => isOpen(host, first.url))), [true, false])
    assert.equal(fs.statSync(path.join(data, 'secrets.json')).mode & 0o777, 0o600)
    assert.equal(fs.existsSync(path.join(data, 'first-sign-in.json')), false)
    assert.equal(await running.stop('SIGINT'), 0)
    assert.equal(fs.existsSync(pidFile), false)
  })

  it('finds everything again: token, key, sealed values, and the demo with the address its model has now', async () => {
    // Takes the preferred port of the model, unless something else has it.
    const blocker = net.createServer().on('error', () => {})
    blocker.listen(Number(new URL((first.model as { url: string }).url).port), '127.0.0.1')
    try {
      const running = start()
      const second = await reported(running)
      assert.equal(second.admin, null)
      const sign_in_link = new URLSearchParams(new URL(second.sign_in_url as string).hash.slice(1)).get('sign_in_link')
      const used = () => client(second.url, null).post('/users/login', { sign_in_link })
      assert.deepEqual([(await used()).status, (await used()).status], [200, 401])
      assert.deepEqual(second.demo, { ...first.demo, key: null })
      assert.notEqual(second.model?.url, first.model?.url)
      const admin = client(second.url, token)
      const providers = await admin.get(`/ai-providers?project_id=${second.demo?.project_id}`)
      assert.deepEqual(
        providers.body.data.map((provider: { base_url: string }) => provider.base_url),
        [second.model?.url],
      )
      assert.equal((await admin.get('/projects')).body.total, 1)
      assert.equal((await say(second, key, 'again')).body.reply.content, 'echo: again')
      assert.equal(await running.stop(), 0)
    } finally {
      blocker.close()
    }
  })

  it('starts after it was killed, on the server that was left', async () => {
    const killed = start()
    await reported(killed)
    assert.equal(await killed.stop('SIGKILL'), 'SIGKILL')
    assert.ok(fs.existsSync(pidFile), 'the server outlives a killed owner')
    const running = start()
    const report = await reported(running)
    assert.equal((await say(report, key, 'still there?')).body.reply.content, 'echo: still there?')
    assert.equal(await running.stop(), 0)
    assert.equal(fs.existsSync(pidFile), false)
  })

  it('a second process on the same directory is refused and the first continues', async () => {
    const running = start()
    const report = await reported(running)
    const other = start()
    assert.equal(await other.ended, 1)
    assert.match(other.output.stderr, /another muster up runs on this data directory/)
    assert.equal((await say(report, key, 'alone')).body.reply.content, 'echo: alone')

    const { port } = new URL(report.url)
    const clash = launch('bin/muster.ts', ['up', '--data', path.join(base, 'other'), '--port', port])
    assert.equal(await clash.ended, 1)
    assert.match(clash.output.stderr, new RegExp(`port ${port} is in use`))
    assert.equal(fs.existsSync(path.join(base, 'other/postgres')), false)
    await running.stop()
  })

  it('refuses a port to which browsers send nothing', async () => {
    const refused = launch('bin/muster.ts', ['up', '--data', path.join(base, 'refused'), '--port', '6000'])
    assert.equal(await refused.ended, 1)
    assert.match(refused.output.stderr, /port 6000 is refused by browsers\n.*--port/)
    for (const port of REFUSED_PORTS)
      await assert.rejects(
        fetch(`http://127.0.0.1:${port}`),
        ({ cause }: Error) => (cause as Error).message === 'bad port',
      )
  })

  it('says that the console was built from other sources', async () => {
    const copy = path.join(base, 'checkout')
    for (const name of ['bin', 'src', 'package.json', 'console/src'])
      fs.cpSync(path.join(root, name), path.join(copy, name), { recursive: true })
    fs.mkdirSync(path.dirname(hashFile(copy, 'console')), { recursive: true })
    fs.writeFileSync(hashFile(copy, 'console'), hashFiles(copy, CONSOLE_INPUTS))
    fs.symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'))
    const stderr = async () => {
      const program = path.relative(root, path.join(copy, 'bin/muster.ts'))
      const running = launch(program, ['up', '--data', path.join(base, 'stale'), '--port', '6000'])
      assert.equal(await running.ended, 1)
      return running.output.stderr
    }
    fs.symlinkSync('nowhere', path.join(copy, 'console/src/lock.tsx'))
    assert.doesNotMatch(await stderr(), /other sources|ENOENT/)
    fs.appendFileSync(path.join(copy, 'console/src/main.tsx'), '\n')
    assert.match(await stderr(), /the console was built from other sources.*npm run build/)
    fs.rmSync(path.join(copy, 'console/src'), { recursive: true })
    assert.doesNotMatch(await stderr(), /other sources/)
  })

  it('a second signal ends the process immediately, and its database with it', async () => {
    const running = start()
    const report = await reported(running)
    // A request whose body never comes keeps the first signal waiting.
    const { hostname, port } = new URL(report.url)
    const socket = net.connect(Number(port), hostname)
    socket.on('error', () => {})
    const head = 'Host: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue'
    socket.write(`POST /api/v1/users/login HTTP/1.1\r\n${head}\r\n\r\n`)
    // Answered as soon as the head has been read.
    await once(socket, 'data')
    socket.write('{')
    running.child.kill('SIGTERM')
    await sleep(50)
    // What npm hands on when a terminal has sent it already.
    running.child.kill('SIGTERM')
    await sleep(1200)
    assert.equal(running.child.exitCode, null)
    const began = performance.now()
    assert.equal(await running.stop('SIGINT'), 1)
    assert.ok(performance.now() - began < 15_000)
    socket.destroy()
    await eventually(() => !fs.existsSync(pidFile), { what: 'the end of the server' })
  })

  it('a signal during the start leaves no process and no file', async () => {
    const running = start()
    await eventually(() => fs.existsSync(pidFile))
    assert.equal(await running.stop(), 0)
    assert.equal(fs.existsSync(pidFile), false)
  })

  it('takes keys of vendors from the environment, and the newest value of each', async () => {
    const secretOf = async (report: Report) => {
      const admin = client(report.url, token)
      const { data } = (await admin.get(`/ai-providers?project_id=${report.demo?.project_id}`)).body
      const provider = data.find(({ name }: { name: string }) => name === 'openai')
      return { ...(await admin.get(`/secrets/${provider.secret_id}`)).body, provider: provider.provider }
    }
    const seen: Record<string, string>[] = []
    for (const OPENAI_API_KEY of ['sk-first', 'sk-second']) {
      const running = start([], { OPENAI_API_KEY, GEMINI_API_KEY: '', HOST: '0.0.0.0' })
      const report = await reported(running)
      const [openai, ...others] = report.demo?.vendors ?? []
      assert.deepEqual([openai.provider, openai.variable, others], ['openai', 'OPENAI_API_KEY', []])
      assert.equal(await isOpen('127.0.0.2', report.url), true)
      seen.push({ ...(await secretOf(report)), agent_id: openai.agent_id })
      assert.equal(await running.stop(), 0)
    }
    const [one, two] = seen
    assert.deepEqual([one.provider, one.name, one.id, one.agent_id], ['openai', 'OPENAI_API_KEY', two.id, two.agent_id])
    assert.notEqual(one.updated_at, two.updated_at)
  })

  it('fills a project with sample data once, whose model answers after each start', async () => {
    const ids: (string | null)[] = []
    for (let n = 0; n < 2; n++) {
      const running = start(['--sample'])
      const report = await reported(running)
      ids.push(report.sample_project_id)
      const admin = client(report.url, token)
      const { data } = (await admin.get(`/agents?project_id=${report.sample_project_id}`)).body
      const assistant = data.find(({ name }: { name: string }) => name !== 'Refund desk')
      const { status, body } = await admin.post(`/agents/${assistant.id}/generate?wait=true`, {
        prompt: 'How do I clean the shade?',
      })
      assert.deepEqual([status, body.output?.content.startsWith('Dust the shade')], [200, true], JSON.stringify(body))
      assert.equal(await running.stop(), 0)
    }
    assert.equal(ids[0], ids[1])
    const refused = start(['--sample', '--no-demo'])
    assert.equal(await refused.ended, 1)
    assert.match(refused.output.stderr, /--sample requires the test model/)
  })

  it('uses the database that DATABASE_URL names, without a demo unless requested', async () => {
    const url = await createDatabase()
    const other = path.join(base, 'named')
    try {
      const running = launch('bin/muster.ts', ['up', '--data', other, '--port', '0', '--no-demo', '--json'], {
        DATABASE_URL: url,
        ADMIN_USERNAME: 'ada',
        ADMIN_PASSWORD: 'a password of hers',
      })
      started.push(running)
      const report = await reported(running)
      assert.deepEqual([report.admin, report.demo, report.model], [null, null, null])
      const login = { username: 'ada', password: 'a password of hers' }
      assert.equal((await client(report.url, null).post('/users/login', login)).status, 200)
      assert.equal(fs.existsSync(path.join(other, 'postgres')), false)
      assert.equal(await running.stop(), 0)
    } finally {
      await dropDatabase(new URL(url).pathname.slice(1))
    }
  })

  it('prints a first conversation and a first search that can be pasted into a shell', async () => {
    const other = path.join(base, 'shown')
    const running = launch('bin/muster.ts', ['up', '--data', other, '--port', '0'])
    started.push(running)
    try {
      await eventually(() => running.output.stdout.includes('users/login'), { within: 50_000 })
      const { stdout } = running.output
      assert.match(stdout, /^Muster answers at http:\/\/localhost:\d+ after/)
      const lines = stdout.split('\n')
      const from = lines.findIndex(line => line.trim().startsWith('KEY='))
      const { stdout: said } = spawnSync('sh', ['-c', lines.slice(from, from + 4).join('\n')], { encoding: 'utf8' })
      assert.equal(JSON.parse(said).reply.content, 'echo: Hello, who are you?')

      const block = [lines[from], ...lines.slice(lines.findIndex(line => line.trim().startsWith('FILE=')))]
      const end = block.indexOf('')
      const pasted = spawnSync('sh', ['-c', block.slice(0, end).join('\n')], { encoding: 'utf8' })
      assert.equal(pasted.stderr, '')
      const [ingested, found] = pasted.stdout.split(/(?=\{"results")/).map(text => JSON.parse(text))
      assert.equal(ingested.status, 'ready')
      assert.equal(found.results[0].path, '/README.md')
      assert.deepEqual(found.degraded_channels, [])
    } finally {
      await running.stop()
      await stopEmbedded(path.join(other, 'postgres'))
    }
  })
})
