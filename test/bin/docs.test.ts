import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { stopEmbedded } from '#local/postgres.ts'
import { client, eventually } from '../support/app.ts'
import { launch, type Running } from '../support/commands.ts'
import { createDatabase, dropDatabase, quietPort } from '../support/postgres.ts'

type Report = {
  url: string
  model: { url: string }
  admin: { username: string; password: string }
  demo: { key: string; agent_id: string; session_id: string }
}

const root = path.resolve(import.meta.dirname, '../..')

/** The commands of a page by the heading above them, in the order of the page. */
function commandsOf(page: string): Map<string, string> {
  const sections = fs.readFileSync(path.join(root, page), 'utf8').split(/^## /m)
  const commands = sections.map(section => [
    section.slice(0, section.indexOf('\n')),
    [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, code]) => code).join(''),
  ])
  return new Map(commands.filter(([, code]) => code !== '') as [string, string][])
}

/** What a page shows as the output of its commands, by the heading. */
function shownBy(page: string): Map<string, string> {
  const sections = fs.readFileSync(path.join(root, page), 'utf8').split(/^## /m)
  return new Map(
    sections.map(section => [
      section.slice(0, section.indexOf('\n')),
      [...section.matchAll(/^```sh\n.*?^```\n\n```\n(.*?)^```$/gms)]
        .map(([, text]) => text)
        .join('')
        .trim(),
    ]),
  )
}

const QUICK_STARTS = fs.readdirSync(path.join(root, 'docs')).filter(name => name.startsWith('quick-start-'))

/** Sections that install or start what the others run against; other tests do that. */
const STARTING = [
  'CONTRIBUTING.md: Setting up',
  'README.md: Running it',
  'README.md: Try it',
  'docs/drills.md: # Drills',
  'docs/install.md: # Install',
  'examples/README.md: Webhook receiver',
]

describe('the commands of the pages', function () {
  this.timeout(300_000)

  const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-docs-'))
  const data = path.join(base, 'data')
  let running: Running
  let report: Report
  let token: string
  /** Where the receiver of webhooks, and web and worker of a deployment, listen. */
  let ports: string[]
  /** The empty database of the deployment. */
  let database: string

  before(async () => {
    fs.chmodSync(base, 0o755)
    ports = []
    for (let count = 0; count < 3; count++) ports.push(String(await quietPort()))
    database = await createDatabase()
    running = launch('bin/muster.ts', ['up', '--data', data, '--port', '0', '--json'], {
      EGRESS_ALLOW_HOSTS: `127.0.0.1:${ports[0]}`,
    })
    report = await eventually<Report | null>(
      () => {
        assert.equal(running.child.exitCode, null, running.output.stderr)
        return running.output.stdout.endsWith('}\n') ? JSON.parse(running.output.stdout) : null
      },
      { within: 200_000, what: 'the report of up' },
    )
    token = (await client(report.url, null).post('/users/login', report.admin)).body.token
  })
  after(async () => {
    await running?.stop()
    await stopEmbedded(path.join(data, 'postgres'))
    fs.rmSync(base, { recursive: true, force: true })
    if (database) await dropDatabase(new URL(database).pathname.slice(1))
  })

  /** Puts in what a reader puts in: what `npm start` printed, and the token of the sign-in. */
  function filledIn(code: string): string {
    const given: [string, string][] = [
      ['http://localhost:5047', report.url],
      ['http://127.0.0.1:5049/v1', report.model.url],
      ['127.0.0.1:8090', `127.0.0.1:${ports[0]}`],
      ['listen(8090', `listen(${ports[0]}`],
      ['postgres://user:password@host:5432/muster', database],
      [' PORT=8080', ` PORT=${ports[1]}`],
      ['localhost:8080', `localhost:${ports[1]}`],
      ['WORKER_HEALTH_PORT=8081', `WORKER_HEALTH_PORT=${ports[2]}`],
      ['localhost:8081', `localhost:${ports[2]}`],
      ['KEY=sk_...', `KEY=${report.demo.key}`],
      ['TOKEN=...', `TOKEN=${token}`],
      ['PASSWORD=...', `PASSWORD=${report.admin.password}`],
    ]
    return given.reduce((text, [shown, real]) => text.replaceAll(shown, real), code)
  }

  /** The blocks that have run, as the pages show them. */
  const run: string[] = []

  /** Runs the commands of all sections in one shell that ends at the first that fails; what each section printed. */
  async function answersOf(
    sections: Map<string, string>,
    cwd: string,
    { env = process.env, notes = '' }: { env?: NodeJS.ProcessEnv; notes?: string } = {},
  ): Promise<Map<string, string>> {
    const script = [...sections].map(([heading, code]) => `printf '\\n## ${heading}\\n'\n${filledIn(code)}`).join('')
    const shell = spawn('sh', ['-eu', '-c', script], { cwd, env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] })
    const output = { stdout: '', stderr: '' }
    for (const name of ['stdout', 'stderr'] as const) shell[name].on('data', part => (output[name] += part))
    run.push(...sections.values())
    const closed = once(shell, 'close')
    await once(shell, 'exit')
    // What a page that failed has left running.
    try {
      process.kill(-(shell.pid as number), 'SIGKILL')
    } catch {}
    const [code] = await closed
    assert.deepEqual([code, output.stderr], [0, notes], output.stdout.slice(-2000))
    const answers = output.stdout.split(/^## /m).slice(1)
    return new Map(answers.map(text => [text.slice(0, text.indexOf('\n')), text.slice(text.indexOf('\n') + 1).trim()]))
  }

  /** The last of the answers, which follow each other without a separator where curl wrote them. */
  function last(answers: string | undefined): any {
    const text = answers ?? ''
    for (let at = text.lastIndexOf('{'); at >= 0; at = at === 0 ? -1 : text.lastIndexOf('{', at - 1)) {
      try {
        const value = JSON.parse(text.slice(at))
        if (at === 0 || text[at - 1] === '}' || text[at - 1] === '\n') return value
      } catch {}
    }
    return assert.fail(`no answer in ${text}`)
  }

  const failures = (answers: Map<string, string>): string[] =>
    [...answers.values()].flatMap(text => [...text.matchAll(/"error":\{"code":"(\w+)"/g)].map(([, code]) => code))

  it('of content.md run as they are written', async () => {
    const sections = commandsOf('docs/content.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    // The command that the page announces.
    assert.deepEqual(failures(answers), ['VALIDATION_FAILED'])
    const of = (heading: string) => answers.get(heading) ?? ''

    assert.match(
      of('Upload'),
      /"path":"\/manuals\/handbook\.pdf".*"path":"\/manuals\/cleaning\.md".*"path":"\/inbox\//s,
    )
    assert.match(of('Ingest'), /"status":"ready".*"chunk_count":2.*Espresso machine EX-4711/s)
    assert.equal(last(of('Ingest')).data[0].event, 'documents.ingested')
    assert.equal(last(of('Chunks')).chunk_unit, 'tokens')
    const found = last(of('Search'))
    assert.match(found.results[0].content, /The warranty is 24 months/)
    assert.deepEqual(found.degraded_channels, [])
    assert.deepEqual(
      [last(of('Inline texts and versions')).status, last(of('Inline texts and versions')).version],
      ['ready', 5],
    )
    assert.match(
      last(of('Metadata')).error.message,
      /^metadata violates the schema of '\/faq': \/lang must be equal to one of the allowed values$/,
    )
    assert.match(of('Path permissions'), /"total":1/)
    assert.deepEqual(
      last(of('Path permissions')).results.map(({ path }: { path: string }) => path),
      ['/faq/returns.md'],
    )
    assert.equal(last(of('Images and other types')).status, 'ready')
    assert.match(
      of('Passing results to an agent'),
      /^echo: .*\[\/manuals\/handbook\.pdf, page 2\].*Question: How long is the warranty\?$/s,
    )
    assert.equal(of('Clean up'), '')
  })

  it('of agents.md run as they are written', async () => {
    const sections = commandsOf('docs/agents.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    assert.match(of('Versions'), /"version":2,.*"label":"shorter".*"version":1,.*"label":"first"/s)
    const [compared] = of('Compare and restore').split(/(?<=\})(?=\{)/)
    const change = { path: 'instructions', op: 'changed', before: 'Be kind.', after: 'Be kind and brief.' }
    assert.deepEqual(JSON.parse(compared), { from: 1, to: 2, changes: [change] })
    assert.equal(last(of('Compare and restore')).version, 3)
    assert.match(of('Release a version to a part of your users'), /canary_percent: 20,.*\n[34]\n[01]\n[45]$/s)
    assert.equal(of('Change the system prompt'), 'Be kind. Answer in one sentence.')
    assert.equal(of('JSON instead of text'), 'billing')
  })

  it('of chats.md run as they are written', async () => {
    const sections = commandsOf('docs/chats.md')
    const answers = await answersOf(sections, root)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.match(answers.get('Settings and a completion') ?? '', /"content":"echo: Good morning"/)
    assert.equal(answers.get('The target'), 'echo: Hello')
    assert.match(answers.get('Streams') ?? '', /data: \[DONE\]$/)
    assert.equal(answers.get('As an actor of a conversation'), '0\necho: Good evening')
  })

  it('of deciders.md run as they are written', async () => {
    const sections = commandsOf('docs/deciders.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    const decision = last(of('Decisions by an agent'))
    assert.deepEqual([decision.status, decision.answers?.length, decision.metadata], ['completed', 3, { mail: 7 }])
    assert.equal(of('Decisions by a tool'), "[ { type: 'predicate', name: 'urgent', probability: 0.9 } ]")
    assert.equal(of('Waiting and notifications'), '2\nnull\n4')
    const changes = '[{"path":"questions[0].instructions","op":"changed","before":"Is it?","after":"Is it urgent?"}]'
    assert.equal(of('Versions'), `2\n{"from":1,"to":2,"changes":${changes}}3`)
  })

  it('of evaluations.md run as they are written', async () => {
    const sections = commandsOf('docs/evaluations.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    const page = fs.readFileSync(path.join(root, 'docs/evaluations.md'), 'utf8')
    const shown = (heading: string) =>
      /```\n\n```\n(.*?)```/s.exec(page.slice(page.indexOf(`\n## ${heading}\n`)))?.[1].trim() ?? ''
    assert.equal(last(of('A dataset')).created, 3)
    const [, csv] = /^(.*\n)\{"created"/s.exec(shown('Files')) ?? []
    assert.equal(of('Files').replaceAll('\r', '').slice(0, csv.length), csv)
    assert.equal(last(of('Files')).created, 3)
    const run = last(of('An eval'))
    assert.deepEqual([run.status, run.passed, run.aggregate_scores.pass_rate], ['completed', true, 1 / 3])
    assert.deepEqual(Object.keys(run.aggregate_scores.grouping.groups).sort(), ['hours', 'talk'])
    assert.deepEqual(of('Results').split('\n').sort(), shown('Results').split('\n').sort())
    assert.match(of('Compare'), /^2\n1\n\{"data":\[\],"total":0,/)
    assert.match(of('Gate and schedule'), /^eval_[0-9a-z]+\n2\neval$/)
  })

  it('of orchestrations.md run as they are written', async () => {
    const sections = commandsOf('docs/orchestrations.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    const page = fs.readFileSync(path.join(root, 'docs/orchestrations.md'), 'utf8')
    assert.equal(of('A graph'), '1')
    const [found] = /```json\n(\{"valid".*?)```/s.exec(page)?.slice(1) ?? []
    assert.deepEqual(JSON.parse(of('Validation')), JSON.parse(found))
    const change = '{"path":"nodes.ask.expires_in","op":"changed","before":3600,"after":7200}'
    assert.equal(of('Versions'), `2\n{"from":1,"to":2,"changes":[${change}]}3\nrestored from v1,two hours,`)
    assert.equal(of('Diagram'), /```mermaid\n(.*?)```/s.exec(page)?.[1].trim())
    for (const heading of ['A run', 'Branches', 'Nested runs']) {
      const section = page.slice(page.indexOf(`\n## ${heading}\n`))
      assert.equal(of(heading), /```\n\n```\n(.*?)```/s.exec(section)?.[1].trim())
    }
  })

  it('of triggers.md run as they are written', async () => {
    const sections = commandsOf('docs/triggers.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const page = fs.readFileSync(path.join(root, 'docs/triggers.md'), 'utf8')
    for (const heading of ['Manual triggers', 'Webhook triggers', 'Schedule triggers', 'Event triggers']) {
      const section = page.slice(page.indexOf(`\n## ${heading}\n`))
      assert.equal(answers.get(heading), /```\n\n```\n(.*?)```/s.exec(section)?.[1].trim())
    }
  })

  it('of formations.md run as they are written', async () => {
    fs.cpSync(path.join(root, 'examples'), path.join(base, 'examples'), { recursive: true })
    const sections = commandsOf('docs/formations.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')
    const page = read('docs/formations.md')
    assert.ok(page.includes(`\`\`\`yaml\n${read('examples/templates/support-agent.yaml')}\`\`\``))
    assert.ok(page.includes(`\`\`\`json\n${read('examples/resource-types.json')}\`\`\``))
    for (const [heading, shown] of shownBy('docs/formations.md'))
      assert.equal(answers.get(heading) ?? '', shown, heading)
  })

  it('of workflows.md run as they are written', async () => {
    const sections = commandsOf('docs/workflows.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const page = fs.readFileSync(path.join(root, 'docs/workflows.md'), 'utf8')
    for (const heading of ['A workflow', 'A task', 'Approval', 'The board']) {
      const section = page.slice(page.indexOf(`\n## ${heading}\n`))
      const shown = /```\n\n```\n(.*?)```/s.exec(section)?.[1].trim()
      assert.equal((answers.get(heading) ?? '').replace(/^1\n/, ''), shown)
    }
  })

  it('of playbooks.md run as they are written', async () => {
    const sections = commandsOf('docs/playbooks.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    assert.equal(answers.get('A playbook'), '{"valid":true,"problems":[]}')
    assert.equal(answers.get('An execution'), 'ann\nrunning\nresolved\nrefund of 80')
  })

  it('of usage.md run as they are written', async () => {
    const sections = commandsOf('docs/usage.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    const line = "2\n[ [ 'input_tokens', 1000, 0.001 ], [ 'output_tokens', 500, 0.001 ] ]\n0.002"
    assert.equal(of('A priced turn'), line)
    assert.equal(of('Prices of a tool or an agent'), '0.5\n2\n1')
    assert.equal(of('Thresholds'), '0.001\ncompleted')
  })

  it('of memory-in-turns.md run as they are written', async () => {
    const sections = commandsOf('docs/memory-in-turns.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    assert.equal(of('Knowledge of an agent'), 'ready\n1')
    assert.match(of('Let an agent write'), /^mstore_[0-9a-z]+$/)
    assert.equal(of('Extract facts from turns'), '0\n0')
  })

  it('of tools.md run as they are written', async () => {
    const sections = commandsOf('docs/tools.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    // The command that the page announces.
    assert.deepEqual(failures(answers), ['VALIDATION_FAILED', 'VALIDATION_FAILED'])
    const of = (heading: string) => answers.get(heading) ?? ''
    assert.equal(of('Call an endpoint'), '["double-1","double-embed"]')
    assert.match(
      of('Arguments and results'),
      /^"echo: hello"\{"error":\{"code":"VALIDATION_FAILED","message":"input\.messages: must be array"/,
    )
    assert.match(of('Secrets and credentials'), /^Bearer \{\{secret:sec_[0-9a-z]+\}\}\n\["double-1","double-embed"\]$/)
    assert.equal(of('Pipelines'), '{"model":"double-1","said":"echo: hello double-1"}')
    assert.match(of('Tools of MCP servers'), /^\{"sum":3\}\[ 'sums_add' \]\n\{"error":\{"code":"VALIDATION_FAILED"/)
    assert.equal(of('Let an agent call them'), 'There are ["double-1","double-embed"]\nYou chose the first')
    assert.match(
      of('Operations of the platform'),
      /^Ann\n1\n\[ 'people_create-actor', 'people_list-actors' \]\ntool_[0-9a-z]+$/,
    )
  })

  it('of guardrails.md run as they are written', async () => {
    const sections = commandsOf('docs/guardrails.md')
    const answers = await answersOf(sections, base)
    const asked = Array(4).fill('route_to_approval').join('\n')
    assert.equal(answers.get('Write and test a guardrail'), `execute\ntripwire\n${asked}`)
    assert.equal(answers.get('Attach a guardrail'), '2tripwire')
  })

  it('of approvals.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/approvals.md'), base)
    assert.equal(answers.get('From a rule to a decided call'), 'pending_approval\napproved\nsucceeded\nResult: "list"')
    assert.equal(answers.get('Chains'), 'concluded\n2\n100\nplatform\n2\ntrue')
  })

  it('of quotas.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/quotas.md'), base)
    assert.equal(answers.get('A token quota for an agent'), 'completed\nQUOTA_EXCEEDED\n0')
    assert.equal(answers.get('Money'), 'true\nMODEL_NOT_PRICED\nfalse')
    assert.equal(answers.get('Reports'), 'true\n31\nllm_tokens\n1')
  })

  it('of cases.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/cases.md'), base)
    assert.match(
      answers.get('A case') ?? '',
      /^case_\S+\n\{ amount: 20, risk: 'low' \}\ncomment\n[0-9a-f]{64}\nresolved\nclosed\n6$/,
    )
    assert.equal(answers.get('Exports'), 'json,markdown,html')
  })

  it('of retention.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/retention.md'), base)
    assert.equal(answers.get('Erase a turn'), '1\napi_key\ntrue')
    assert.equal(answers.get('Expiry of content'), '30')
    assert.equal(answers.get('Erase an end user'), 'completed\njob_\n[ null, null ]')
    assert.equal(answers.get('Legal hold'), '2100-01-01T00:00:00.000Z\nCONTENT_ON_HOLD\nnull')
  })

  it('of memory.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/memory.md'), base)
    assert.equal(answers.get('Writing facts'), 'skipped\nsuperseded\nAda takes her tea with oat milk\ntrue')
    assert.equal(answers.get('Reading facts'), 'Ada takes her tea with oat milk\nsuperseded,skipped,created\n2')
    assert.equal(answers.get('Facts of end users'), 'created\ncreated\n1\ntrue')
  })

  it('of activity.md run as they are written', async () => {
    const sections = commandsOf('docs/activity.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.equal(answers.get('Exceptions'), '2\nacknowledged\nresolved')
    assert.equal(answers.get('The activity feed'), 'exception_created')
  })

  it('of oauth.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/oauth.md'), base)
    const [server, api] = (answers.get('Find the endpoints') ?? '').split('}{')
    assert.match(server, /"token_endpoint":"http/)
    assert.match(api, /"scopes_supported":\["mcp:access"\]/)
    assert.match(answers.get('Be a client') ?? '', /"client_id":"oac_/)
    assert.deepEqual(last(answers.get('See and end grants')).data, [])
  })

  it('of api.md run as they are written', async () => {
    const answers = await answersOf(commandsOf('docs/api.md'), base)
    assert.match(answers.get('# The API') ?? '', /^\{"openapi":"3\.1\.\d"/)
  })

  it('of guide.md run as they are written', async () => {
    const sections = commandsOf('docs/guide.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    for (const [heading, shown] of shownBy('docs/guide.md')) assert.equal(answers.get(heading) ?? '', shown, heading)
  })

  for (const name of QUICK_STARTS)
    it(`of ${name} run as they are written, with nothing of the machine but its programs`, async () => {
      const home = fs.mkdtempSync(path.join(base, 'home-'))
      const env = { PATH: process.env.PATH, HOME: home, TMPDIR: home }
      const page = `docs/${name}`
      const signIn = `signed in to ${report.url} (profile default)\nsigned out of ${report.url}\n`
      const notes = name === 'quick-start-cli.md' ? signIn : ''
      const answers = await answersOf(commandsOf(page), root, { env, notes })
      for (const [heading, shown] of shownBy(page)) assert.equal(answers.get(heading) ?? '', shown, heading)
    })

  it('of the README run as they are written', async () => {
    const commands = commandsOf('README.md')
    const headings = ['A first conversation', 'A first search']
    const answers = await answersOf(new Map(headings.map(heading => [heading, commands.get(heading) as string])), root)
    assert.deepEqual(failures(answers), [])
    assert.match(answers.get('A first conversation') ?? '', /"content":"echo: Hello, who are you\?"/)
    assert.equal(last(answers.get('A first conversation')).data.length, 2)
    const found = last(answers.get('A first search'))
    assert.equal(found.results[0].path, '/docs/security.md')
    assert.match(found.results[0].content, /password/i)
  })

  it('of conversations.md run as they are written', async () => {
    const sections = commandsOf('docs/conversations.md')
    const answers = await answersOf(sections, base)
    assert.deepEqual([...answers.keys()], [...sections.keys()])
    assert.deepEqual(failures(answers), [])
    const of = (heading: string) => answers.get(heading) ?? ''
    assert.match(of('A provider and an agent'), /"default_model_route_id":"route_/)
    assert.match(of('Messages and turns'), /"content":"echo: \[Ann\]: Hello, who are you\?"/)
    const files = 'Documents and files in messages'
    assert.match(of(files), /"content":"We ship on Friday\.".*"content":"echo: .*We ship on Friday\."/s)
    assert.match(last(of(files)).output.content, /What is this\?/)
    const chats = of('Images and files in chats')
    assert.match(chats, /"content":"What is this\?\\n\\n\[image: a dot\]"/)
    assert.match(chats, /double-1.*\{"id":"file_[^"]+","filename":"dot.png","content_type":"image\/png"/s)
    // The stream as read first, the turn from its start, and the pieces after its second.
    assert.deepEqual(of('Streams').match(/^id: 1$|^event: completed$/gm), [
      'id: 1',
      'event: completed',
      'id: 1',
      'event: completed',
      'event: completed',
    ])
    assert.match(of('Without a session'), /"content":"echo: One line, please\."/)
    assert.match(of('Webhooks'), /"secret":"whsec_/)
  })

  it('of end-users.md run as they are written', async () => {
    const sections = commandsOf('docs/end-users.md')
    const answers = await answersOf(sections, base)
    assert.equal(answers.get('Issue a token'), 'Hello\necho: [Ada]: Hello\nFORBIDDEN')
  })

  it('of operations.md run as they are written, on the data of a deployment that runs', async () => {
    // What has a place for an id is for a dead letter that there is; none is here.
    const commands = [...commandsOf('docs/operations.md')].map(([heading, code]) => [heading, code] as const)
    const muster = `muster() { node '${path.join(root, 'bin/muster.ts')}' "$@" --data '${data}' 2>&1; }\n`
    const demo = client(report.url, report.demo.key)
    const { project_id } = (await demo.get(`/agents/${report.demo.agent_id}`)).body
    const runnable = commands.map(([heading, code]) => [heading, code.replace(/^.*<id>.*\n/gm, '')] as const)
    const shown = runnable.map(([heading, code]) => [heading, code.replaceAll('proj_...', project_id)] as const)
    const answers = await answersOf(new Map([['muster', muster], ...shown]), base)
    run.push(...commands.map(([, code]) => code))
    assert.match(answers.get('Embeddings') ?? '', /^\d+ of \d+ documents, \d+ chunks embedded, 0 failed$/m)
  })

  it('of examples run as they are written', async () => {
    const [[heading, code]] = commandsOf('examples/README.md')
    const given = code.replace('MUSTER_KEY=sk_...', `MUSTER_KEY=${report.demo.key}`)
    const answers = await answersOf(new Map([[heading, given]]), root)
    run.push(code)
    assert.match(answers.get(heading) ?? '', /agent: echo: Hello, who are you\?/)
  })

  it('are run of every page, all that do not start a deployment', () => {
    const pages = ['.', 'docs', 'examples'].flatMap(folder =>
      fs
        .readdirSync(path.join(root, folder))
        .filter(name => name.endsWith('.md'))
        .map(name => path.join(folder, name)),
    )
    const left = pages.flatMap(page =>
      [...commandsOf(page)].filter(([, code]) => !run.includes(code)).map(([heading]) => `${page}: ${heading}`),
    )
    assert.deepEqual(left.sort(), STARTING)
  })
})
