import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { startSessionApp } from '../conversation/session-support.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

const hasControls = (text: string): boolean => ['\u001b', '\u0007', '\u202e'].some(each => text.includes(each))

describe('the command line with the service', function () {
  this.timeout(120_000)
  const app = forSuite(startSessionApp)
  const user = forSuite(() => new User(app.url, app.key.token))

  /** Runs a command that must succeed and prints JSON. */
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await user.run(args)
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }

  it('creates, gets, updates, lists and deletes', async () => {
    const actor = await json('actors', 'create', '--name', 'Ann')
    assert.equal(actor.name, 'Ann')
    assert.deepEqual(await json('actors', 'tags', 'merge', actor.id, '--set', 'team=desk', '--set', 'floor=2'), {
      team: 'desk',
      floor: '2',
    })
    assert.deepEqual(await json('actors', 'tags', 'merge', actor.id, '--clear', 'floor'), { team: 'desk' })
    assert.equal((await json('actors', 'list', '--tags', 'team=desk')).total, 1)
    assert.equal((await json('actors', 'update', actor.id, '--name', 'Ben')).name, 'Ben')
    const id = await user.run(['actors', 'get', actor.id, '--field', 'id'])
    assert.equal(id.stdout, `${actor.id}\n`)
    assert.equal((await user.run(['actors', 'get', actor.id, '--field', 'nothing'])).code, 1)
    const refused = await user.run(['actors', 'delete', actor.id])
    assert.equal(refused.code, 2)
    assert.match(refused.stderr, /--yes/)
    const turn = await json('agents', 'generate', app.agentId, '--prompt', 'x', '--json')
    // A dry run deletes nothing and needs no confirmation.
    const purge = ['generations', 'purge-content', turn.id]
    const dry = await user.run([...purge, '--dry-run'])
    assert.equal(dry.code, 0, dry.stderr)
    assert.equal((await user.run(purge)).code, 2)
    assert.notEqual((await json('generations', 'get', turn.id)).output, null)
    assert.equal((await json('actors', 'purge-content', actor.id, '--dry-run')).dry_run, true)
    assert.equal((await user.run(['actors', 'purge-content', actor.id])).code, 2)
    const deleted = await user.run(['actors', 'delete', actor.id, '--yes'])
    assert.deepEqual([deleted.code, deleted.stdout], [0, ''])
    assert.equal((await user.run(['actors', 'get', actor.id])).code, 5)
  })

  it('prints the body of an answer byte for byte unless stdout is a terminal', async () => {
    const { stdout } = await user.run(['actors', 'list', '--limit', '2'])
    const response = await fetch(`${app.url}/api/v1/actors?limit=2`, {
      headers: { authorization: `Bearer ${app.key.token}` },
    })
    assert.equal(stdout, await response.text())
  })

  it('keeps the digits of numbers in flags, in files and in its output', async () => {
    const { id } = await json('datasets', 'create', '--name', 'digits')
    const metadata = '{"id":2512292042121000001,"price":1.10}'
    const question = ['--input', '[{"role":"user","content":"hi"}]']
    const yaml = user.file('item.yaml', 'metadata: { id: 2512292042121000001, price: 1.10 }\n')
    for (const given of [
      ['--metadata', metadata],
      ['--body', `@${yaml}`],
      ['--set', 'metadata.id=2512292042121000001', '--set', 'metadata.price=1.10'],
    ]) {
      const added = await user.run(['datasets', 'items', 'create', id, ...question, ...given])
      assert.ok(added.stdout.includes(metadata), added.stdout + added.stderr)
    }
    const list = ['datasets', 'items', 'list', id, '--all']
    const printed = async (...options: string[]) => (await user.run([...list, ...options])).stdout.split('\n')
    assert.equal((await printed('--jsonl')).filter(line => line.includes(metadata)).length, 3)
    assert.deepEqual(await printed('--field', 'metadata.id'), [...Array(3).fill('2512292042121000001'), ''])
    assert.match((await user.onTerminal([...list, '--columns', 'metadata.price'])).stdout, /1\.10/)
    const called = await user.run(['api', 'GET', `/api/v1/datasets/${id}/items`, '--field', 'data[0].metadata.id'])
    assert.equal(called.stdout, '2512292042121000001\n')
  })

  it('walks all pages, each item once, and stops at a maximum', async () => {
    const { id } = await json('datasets', 'create', '--name', 'many')
    const line = `${JSON.stringify({ input: [{ role: 'user', content: 'x' }] })}\n`
    const file = user.file('items.jsonl', line.repeat(250))
    assert.equal((await user.run(['datasets', 'items', 'import-file', id, '--file', file])).code, 0)
    const all = await user.run(['datasets', 'items', 'list', id, '--all', '--jsonl', '--debug'])
    const ids = all.stdout
      .trimEnd()
      .split('\n')
      .map(each => JSON.parse(each).id)
    assert.deepEqual([ids.length, new Set(ids).size], [250, 250])
    assert.equal(all.stderr.match(/^> GET .*\/items/gm)?.length, 3)
    const array = await json('datasets', 'items', 'list', id, '--all')
    assert.equal(array.length, 250)
    const some = await user.run(['datasets', 'items', 'list', id, '--max', '7', '--field', 'id'])
    assert.equal(some.stdout.trimEnd().split('\n').length, 7)
  })

  it('runs a command for each line of stdin, in their order', async () => {
    const names = ['a', 'b', 'c']
    const actors = await Promise.all(names.map(name => json('actors', 'create', '--name', `repeated ${name}`)))
    const ids = actors.map(each => each.id)
    const found = await user.run(['actors', 'get', '-', '--field', 'name'], { input: `${ids.join('\n')}\n` })
    assert.equal(found.stdout, names.map(name => `repeated ${name}\n`).join(''))
    const mixed = await user.run(['actors', 'get', '-', '--field', 'id'], {
      input: `${ids[0]}\nactor_none\n${ids[2]}\n`,
    })
    assert.deepEqual([mixed.code, mixed.stdout], [5, `${ids[0]}\n${ids[2]}\n`])
  })

  it('finds a project by its name', async () => {
    const admin = new User(app.url, app.admin.token)
    const project = await app.project('a separate project')
    const made = await admin.run(['actors', 'create', '--name', 'in it', '--project', 'a separate project'])
    assert.equal(JSON.parse(made.stdout).project_id, project.id)
    const listed = await admin.run(['actors', 'list', '--field', 'project_id'], { env: { MUSTER_PROJECT: project.id } })
    assert.equal(listed.stdout, `${project.id}\n`)
    assert.equal((await admin.run(['actors', 'list', '--project', 'none such'])).code, 5)
    // Commands without a project do not depend on the name of one, above all the command that lists projects.
    const named = { env: { MUSTER_PROJECT: 'none such' } }
    assert.ok((await admin.run(['projects', 'list', '--field', 'id'], named)).stdout.includes(project.id))
    for (const args of [['whoami'], ['api', 'GET', '/api/v1/projects']])
      assert.equal((await admin.run(args, named)).code, 0, args.join(' '))
    admin.close()
  })

  it('sends and receives files', async () => {
    const content = 'a line\n'.repeat(10_000)
    const made = await json('files', 'upload', '--file', user.file('a.txt', content), '--prefix', '/cli')
    assert.deepEqual([made.size, made.filename ?? path.basename(made.path)], [content.length, 'a.txt'])
    const piped = await user.run(['files', 'upload', '--file', '-', '--filename', 'b.txt'], { input: content })
    assert.equal(piped.code, 0, piped.stderr)
    assert.equal(JSON.parse(piped.stdout).size, content.length)
    assert.equal((await user.run(['files', 'upload', '--file', '-'], { input: content })).code, 2)
    assert.equal((await user.run(['files', 'download', made.id])).stdout, content)
    const output = path.join(user.directory, 'out.txt')
    assert.equal((await user.run(['files', 'download', made.id, '--output', output])).code, 0)
    assert.equal(fs.readFileSync(output, 'utf8'), content)
    const shown = await user.onTerminal(['files', 'download', made.id])
    assert.equal(shown.stdout, content)
    const binary = await json('files', 'upload', '--file', user.file('c.bin', Buffer.from([0, 255, 27])))
    const refused = await user.onTerminal(['files', 'download', binary.id])
    assert.deepEqual([refused.code, refused.stdout], [2, ''])
  })

  it('refuses a secret among the arguments, reads it elsewhere, and never prints it', async () => {
    const refused = await user.run(['secrets', 'create', '--name', 'a', '--value', 's3cret-value'])
    assert.equal(refused.code, 2)
    for (const [value, options] of [
      ['@-', { input: 's3cret-value\n' }],
      [`@${user.file('secret', 's3cret-value')}`, {}],
      ['env:THE_SECRET', { env: { THE_SECRET: 's3cret-value' } }],
    ] as const) {
      const made = await user.run(
        ['secrets', 'create', '--name', `s${value.length}`, '--value', value, '--debug'],
        options,
      )
      assert.equal(made.code, 0, made.stderr)
      assert.match(made.stderr, /> POST .*\/secrets/)
      assert.doesNotMatch(made.stdout + made.stderr, /s3cret-value/)
      assert.doesNotMatch(made.stderr, new RegExp(app.key.token as string))
    }
    assert.equal((await user.run(['secrets', 'create', '--name', 'argv', '--value', 'x', '--allow-argv'])).code, 0)
  })

  it('prints tables for people, without control characters of others', async () => {
    const made = await json('actors', 'create', '--name', 'evil \u001b]0;x\u0007 \u202e name')
    const { stdout } = await user.onTerminal(['actors', 'list', '--name', 'evil', '--columns', 'id,name'])
    assert.match(stdout, /^ID +NAME/)
    assert.ok(stdout.includes(made.id))
    assert.ok(stdout.includes('\\x1b]0;x\\x07 \\u202e'))
    assert.equal(hasControls(stdout), false)
    const record = await user.onTerminal(['actors', 'get', made.id])
    assert.match(record.stdout, new RegExp(`^id: ${made.id}$`, 'm'))
    assert.equal(hasControls(record.stdout), false)
    const utc = await user.onTerminal(['actors', 'list', '--name', 'evil', '--columns', 'id,created_at', '--utc'])
    assert.match(utc.stdout, /\d{4}-\d\d-\d\dT/)
    const unknown = await user.onTerminal(['actors', 'list', '--name', 'evil', '--columns', 'id,nonsense'])
    assert.equal(unknown.code, 2)
    assert.match(unknown.stderr, /no item has the field nonsense of --columns\n.*Fields: id, /)
    const usage = await user.onTerminal(['usage', 'aggregate', '--group-by', 'meter_type'])
    assert.match(usage.stdout, /^group_by: meter_type$/m)
  })

  it('takes a text that begins with @ for a file, and names the other way', async () => {
    const missing = await user.run(['actors', 'create', '--name', '@ann'])
    assert.equal(missing.code, 2)
    assert.match(missing.stderr, /Write @@ann for a text that begins with @/)
    assert.equal((await json('actors', 'create', '--name', '@@ann')).name, '@ann')
  })

  it('explains an error with its fields, and prints it as received with --json', async () => {
    const invalid = await user.run(['agents', 'create', '--name', '', '--ai-provider-id', 'none'])
    assert.equal(invalid.code, 7)
    assert.match(invalid.stderr, /^muster: .*\(VALIDATION_FAILED, 400\)/)
    assert.match(invalid.stderr, /^ {2}--name: /m)
    assert.match(invalid.stderr, /request \w+/)
    const missing = await user.run(['agents', 'get', 'agent_none'])
    assert.match(missing.stderr, /^ {2}agent_id: agent_none/m)
    assert.match(missing.stderr, /Try: muster agents list/)
    const body = await user.run(['agents', 'get', 'agent_none', '--json'])
    assert.equal(JSON.parse(body.stderr).error.code, 'RESOURCE_NOT_FOUND')
    const signedOut = await new User(app.url).run(['agents', 'list'])
    assert.equal(signedOut.code, 3)
    assert.match(signedOut.stderr, /muster login/)
  })

  it('names --force where other records depend on a record', async () => {
    const secret = await app.key.post('/secrets', { name: 'in use', value: 'v' })
    const provider = { name: 'uses it', provider: 'openai', default_model: 'm', secret_id: secret.body.id }
    assert.equal((await app.key.post('/ai-providers', provider)).status, 201)
    const refused = await user.run(['secrets', 'delete', secret.body.id, '--yes'])
    assert.equal(refused.code, 6)
    assert.match(refused.stderr, /HAS_DEPENDENTS, 409/)
    assert.match(refused.stderr, /Add --force/)
  })

  it('prints a request without sending it', async () => {
    const printed = await user.run(['actors', 'create', '--name', "it's", '--print-request'])
    assert.equal(printed.code, 0, printed.stderr)
    assert.match(printed.stdout, /^curl -X POST 'http:.*\/api\/v1\/actors'/)
    assert.ok(printed.stdout.includes('Bearer $MUSTER_TOKEN') && !printed.stdout.includes(app.key.token as string))
    assert.equal((await json('actors', 'list', '--name', "it's")).total, 0)
  })

  it('checks instead of changing only where the service has a check', async () => {
    const graph = { nodes: [], edges: [{ from: 'a', to: 'b' }] }
    const checked = await user.run([
      'orchestrations',
      'create',
      '--name',
      'x',
      '--body',
      JSON.stringify(graph),
      '--dry-run',
    ])
    assert.equal(checked.code, 7, checked.stdout)
    assert.equal((await json('orchestrations', 'list')).total, 0)
    assert.equal((await user.run(['actors', 'create', '--name', 'x', '--dry-run'])).code, 2)
  })

  it('sends any request', async () => {
    const made = await user.run(['api', 'POST', '/api/v1/actors', '--body', '{"name":"by api"}', '--field', 'name'])
    assert.equal(made.stdout, 'by api\n')
    assert.equal((await user.run(['api', 'GET', '/healthz'])).stdout, '{"status":"ok"}')
    assert.equal((await user.run(['api', 'GET', '/api/v1/agents/none'])).code, 5)
    assert.equal((await user.run(['api', 'SEND', '/'])).code, 2)
  })

  it('shows both versions, and the user', async () => {
    const { version } = JSON.parse(fs.readFileSync(path.resolve(import.meta.dirname, '../../package.json'), 'utf8'))
    assert.deepEqual(await json('version', '--json'), { client: version, server: version })
    assert.equal((await user.run(['--version'])).stdout, `${version}\n`)
    assert.equal((await json('whoami')).credential.type, 'api_key')
  })

  it('opens the console at a view of the project, or prints its address', async () => {
    const address = (view: string) => `${app.url}/app/p/${app.projectId}/${view}`
    const { name } = (await app.admin.get(`/projects/${app.projectId}`)).body
    const opened = path.join(user.directory, 'opened')
    const browser = user.file('browser', `#!/bin/sh\nprintf %s "$1" > '${opened}'\n`)
    fs.chmodSync(browser, 0o700)
    const env = { BROWSER: browser }
    const open = (...args: string[]) => user.run(['open', ...args], { env })
    assert.equal((await open('--project', app.projectId)).stdout, `${address('start')}\n`)
    assert.equal((await open('sessions/sess_1', '--project', name)).stdout, `${address('sessions/sess_1')}\n`)
    // The key is of one project.
    assert.equal((await open('inbox')).stdout, `${address('inbox')}\n`)
    const admin = { MUSTER_TOKEN: app.admin.token as string }
    assert.equal((await user.run(['open'], { env: { ...env, ...admin } })).stdout, `${app.url}/app\n`)
    assert.equal((await user.run(['open', 'inbox'], { env: { ...env, ...admin } })).code, 2)
    for (const args of [
      ['../x', '--project', app.projectId],
      ['inbox?x', '--project', app.projectId],
    ])
      assert.equal((await open(...args)).code, 2)
    assert.equal((await open('--project', 'none')).code, 5)
    assert.ok(!fs.existsSync(opened))

    const onTerminal = ['open', 'inbox', '--project', app.projectId]
    for (const other of [{}, { ...env, SSH_CONNECTION: 'x' }])
      assert.equal((await user.onTerminal(onTerminal, { env: other })).stdout, `${address('inbox')}\n`)
    assert.ok(!fs.existsSync(opened))
    const { stdout, stderr } = await user.onTerminal(onTerminal, { env })
    assert.deepEqual([stdout, stderr], ['', `opened ${address('inbox')}\n`])
    await eventually(() => fs.existsSync(opened) && fs.readFileSync(opened, 'utf8') === address('inbox'))
    const page = await fetch(address('inbox'), { headers: { accept: 'text/html' } })
    assert.equal(page.status, 200)
  })

  it('uses the commands of the service once the profile is synchronized', async () => {
    const own = new User(undefined, app.key.token)
    await own.run(['profile', 'set', 'url', app.url])
    const synced = await own.run(['profile', 'sync'])
    assert.match(synced.stderr, /\d+ commands of version/)
    assert.match((await own.run(['profile', 'sync'])).stderr, /have not changed/)
    const file = path.join(own.env.MUSTER_CONFIG_DIR, 'cache/default/commands.json')
    assert.equal(fs.statSync(file).mode & 0o777, 0o600)
    // A command that this version does not have.
    const table = JSON.parse(fs.readFileSync(file, 'utf8'))
    const added = {
      ...table.commands.find((each: any) => each.id === 'createActor'),
      id: 'new',
      words: ['actors', 'invent'],
    }
    const lines = fs.readFileSync(file, 'utf8').replace('\n]}', `,\n${JSON.stringify(added)}\n]}`)
    fs.writeFileSync(file, lines)
    const made = await own.run(['actors', 'invent', '--name', 'new'])
    assert.equal(JSON.parse(made.stdout).name, 'new', made.stderr)
    assert.equal((await own.run(['actors', 'list', '--all', '--name', 'new', '--field', 'name'])).stdout, 'new\n')
    // A file that is none of commands is ignored.
    fs.writeFileSync(file, lines.slice(1))
    assert.equal((await own.run(['actors', 'list', '--name', 'new', '--field', 'name'])).stdout, 'new\n')
    assert.equal((await own.run(['actors', 'invent', '--name', 'new'])).code, 2)
    own.close()
  })

  it('completes words, options, values and the ids of the last list, without a request', async () => {
    const own = new User(undefined, app.key.token)
    await own.run(['profile', 'set', 'url', app.url])
    const made = JSON.parse((await own.run(['actors', 'create', '--name', 'completed'])).stdout)
    await own.run(['actors', 'list'])
    await own.run(['profile', 'set', 'url', 'http://127.0.0.1:1'])
    const complete = async (...words: string[]) =>
      (await own.run(['__complete', ...words])).stdout.split('\n').map(each => each.split('\t')[0])
    assert.ok((await complete('act')).includes('actors'))
    assert.ok((await complete('mig')).includes('migrate'))
    assert.ok((await complete('actors', '')).includes('create'))
    assert.ok((await complete('actors', 'get', '')).includes(made.id))
    assert.ok((await complete('actors', 'create', '--na')).includes('--name'))
    assert.deepEqual((await complete('approvals', 'list', '--status', 'ap')).filter(Boolean), ['approved'])
    assert.deepEqual((await complete('profile', 's')).filter(Boolean), ['set', 'sync'])
    assert.deepEqual((await complete('completion', 'ba')).filter(Boolean), ['bash'])
    // Options and their values are no words of a command and no IDs.
    assert.ok((await complete('--profile', 'default', 'actors', '')).includes('create'))
    assert.ok((await complete('actors', 'get', '--field', 'id', '')).includes(made.id))
    assert.deepEqual((await complete('actors', 'get', '--field', '')).filter(Boolean), [])
    assert.deepEqual((await complete('actors', 'get', made.id, '')).filter(Boolean), [])
    for (const shell of ['bash', 'zsh', 'fish', 'pwsh'])
      assert.match((await own.run(['completion', shell])).stdout, /__complete/)
    own.close()
  })

  it('follows a record', async () => {
    const actor = await json('actors', 'create', '--name', 'followed')
    const following = user.start(['actors', 'get', actor.id, '--follow', '--field', 'name'])
    await eventually(() => following.output.stdout === 'followed\n')
    await json('actors', 'update', actor.id, '--name', 'changed')
    await eventually(() => following.output.stdout === 'followed\nchanged\n')
    following.child.kill('SIGINT')
    assert.equal((await following.ended).code, 130)
  })
})
