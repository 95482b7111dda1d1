import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import type { VendorNote } from '#execution/providers/model-messages.ts'
import { type Client, client, startApp, type TestApp } from '../support/app.ts'
import { GARBAGE_FLAGS, startProcess, type TestProcess } from '../support/processes.ts'
import { laneOf, type Profile, processSettings, profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { type Capability, type Cell, capabilities, NOT_OFFERED, type Turn } from './capabilities.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

/**
 * Cells that do not work as requested, by capability and profile: not offered, `degraded: ` with the notes of the steps, or the
 * refusal or failure. A cell with another result fails the test until the list is written again:
 * RECORD_MATRIX=1 npm test -- test/vendors/matrix.test.ts
 */
const KNOWN = path.join(import.meta.dirname, 'known-refusals.json')
type Results = Record<string, Record<string, string>>

const ROOT = path.join(import.meta.dirname, '../..')
const PAGE = path.join(ROOT, 'docs/model-vendors.md')
/** Part of the page that is written with the list. */
const SECTION = /(?<=<!-- matrix -->\n)[\s\S]*(?=<!-- end of matrix -->)/

const DEGRADED = 'degraded: '

/** Returns the matrix as Markdown: the packages it was tried with, and capabilities not offered, degraded or fails. */
function matrixText(results: Results): string {
  const { dependencies } = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8'))
  const packages = Object.entries(dependencies).filter(([name]) => name.startsWith('@ai-sdk/'))
  const rows = Object.entries(results).map(([name, failures]) => {
    const absent = Object.keys(failures).filter(each => failures[each] === NOT_OFFERED)
    const degraded = Object.entries(failures).filter(([, failure]) => failure.startsWith(DEGRADED))
    const failed = Object.entries(failures).filter(
      ([, failure]) => failure !== NOT_OFFERED && !failure.startsWith(DEGRADED),
    )
    const byNotes = Object.entries(Object.groupBy(degraded, ([, note]) => note.slice(DEGRADED.length)))
    const notes = byNotes.map(([note, cells]) => `${cells!.map(([each]) => each).join(', ')}: ${note}`)
    const offered = profiles.map(profile => profile.name).filter(each => !absent.includes(each))
    const by =
      absent.length === 0 ? 'all' : absent.length > offered.length ? offered.join(', ') : `all but ${absent.join(', ')}`
    return `| ${name} | ${by} | ${notes.join('<br>')} | ${failed.map(([each, failure]) => `${each}: ${failure}`).join('; ')} |`
  })
  const names = profiles.map(({ name }) => `\`${name}\``).join(', ')
  return [
    `Providers: ${names}. Packages: ${packages.map(([name, version]) => `${name} ${version}`).join(', ')}.`,
    '',
    '| Capability | Offered by | Degraded with | Fails with |',
    '|---|---|---|---|',
    ...rows,
    '',
  ].join('\n')
}

/** Writes numbers of calls and IDs alike in each run. */
const stable = (failure: string): string =>
  failure
    .replace(/\b[a-z]+_[0-9a-z]{26}\b/g, '…')
    .replace(/[A-Za-z_.:-]*\d{6,}\w*/g, '…')
    .replace(/127\.0\.0\.1:\d+/g, '…')
    .slice(0, 240)

describe('providers by capabilities', function () {
  this.timeout(60_000)
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  const processes: TestProcess[] = []
  const providers = new Map<Profile, string>()
  /** Agents without settings. */
  const plainAgents = new Map<Profile, string>()
  const results: Results = {}
  const known: Results = JSON.parse(readFileSync(KNOWN, 'utf8'))
  let paths = 0

  before(async () => {
    ;[simulators, tools, app] = await Promise.all([startSimulators(), startToolServer(), startApp()])
    const { env, flags } = processSettings(simulators.url)
    const start = (kind: 'web' | 'worker', ...args: string[]) =>
      startProcess(kind, app.databaseUrl, { WORKER_CONCURRENCY: '24', ...env }, args, [...GARBAGE_FLAGS, ...flags])
    processes.push(...(await Promise.all([start('web'), start('worker', 'generation', 'snapshot')])))
    const project = await app.projectWith([
      'agents:*',
      'ai-providers:*',
      'conversations:*',
      'files:*',
      'generations:*',
      'secrets:*',
      'sessions:*',
      'tools:*',
      'traces:*',
    ])
    key = client(processes[0]!.url, project.key.token)
    await Promise.all(
      profiles.map(async profile => {
        const secret = await key.post('/secrets', { name: profile.name, value: laneOf(profile) })
        const fields = { ...providerFields(profile, simulators.url), secret_id: secret.body.id }
        const made = await key.post('/ai-providers', fields)
        assert.equal(made.status, 201, JSON.stringify(made.body))
        providers.set(profile, made.body.id)
        plainAgents.set(profile, await agentOf({ ai_provider_id: made.body.id }))
      }),
    )
  })
  after(async () => {
    await Promise.all(processes.map(({ kill }) => kill('SIGTERM')))
    await Promise.all([app?.close(), simulators?.close(), tools?.close()])
    if (!process.env.RECORD_MATRIX) return
    writeFileSync(KNOWN, `${JSON.stringify(results, null, 2)}\n`)
    writeFileSync(PAGE, readFileSync(PAGE, 'utf8').replace(SECTION, matrixText(results)))
  })

  const turn = async (key: Client, agent: string, body: object): Promise<Turn> => {
    const reply = await key.post(`/agents/${agent}/generate?wait=true`, body)
    if (typeof reply.body === 'string') return streamed(reply.body)
    const { error } = reply.body
    if (error) return { text: '', error: `${error.code}: ${error.message}`, body: reply.body }
    return { text: reply.body.output?.content ?? '', error: null, body: reply.body }
  }

  const agentOf = async (fields: object): Promise<string> => {
    const made = await key.post('/agents', { name: 'agent', ...fields })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body.id
  }

  const cellOf = (profile: Profile, key: Client): Cell => {
    const lane = laneOf(profile)
    const ai_provider_id = providers.get(profile)!
    return {
      profile,
      key,
      providerId: ai_provider_id,
      tools,
      plan: plan => simulators.plan(lane, plan),
      calls: () => simulators.calls(lane),
      agent: fields => (fields ? agentOf({ ai_provider_id, ...fields }) : plainAgents.get(profile)!),
      turn: (agent, body) => turn(key, agent, body),
      toolPath: () => `tool-${++paths}.`,
    }
  }

  /** Returns the notes of the steps of turns, each once. */
  const notesOf = async (turns: ReadonlySet<string>): Promise<string[]> => {
    const replies = await Promise.all([...turns].map(id => key.get(`/generations/${id}/transcript`)))
    for (const { status, body } of replies) assert.equal(status, 200, JSON.stringify(body))
    const notes: VendorNote[] = replies.flatMap(({ body }) =>
      (body.steps ?? []).flatMap((step: any) => step.notes ?? []),
    )
    const texts = notes.map(({ kind, message, ...about }) => `${[kind, ...Object.values(about)].join(' ')}: ${message}`)
    return [...new Set(texts)].sort()
  }

  /** Runs a capability on a profile. A refusal of the vendor explains a failure better than the error of the turn. */
  const run = async (capability: Capability, profile: Profile): Promise<string | null> => {
    const lane = laneOf(profile)
    const from = simulators.requests.length
    const turns = new Set<string>()
    const recording: Client = {
      ...key,
      async post(...args) {
        const reply = await key.post(...args)
        for (const [id] of JSON.stringify(reply.body ?? null).matchAll(/\bgen_[0-9a-z]{26}\b/g)) turns.add(id)
        return reply
      },
    }
    const failure = await capability(cellOf(profile, recording)).catch(error => String(error.message))
    if (failure === null) {
      const notes = await notesOf(turns)
      return notes.length > 0 ? stable(DEGRADED + notes.join('; ')) : null
    }
    const calls = simulators.requests.slice(from).filter(request => request.lane === lane)
    const refused = calls.flatMap(({ refusals }) => refusals.filter(({ source }) => source !== '?'))
    return stable(refused[0]?.message ?? failure)
  }

  for (const [name, capability] of Object.entries(capabilities))
    it(name, async () => {
      const failures = await Promise.all(
        profiles.map(async profile => [profile.name, await run(capability, profile)] as const),
      )
      results[name] = Object.fromEntries(failures.filter((entry): entry is [string, string] => entry[1] !== null))
      if (!process.env.RECORD_MATRIX) assert.deepEqual(results[name], known[name] ?? {})
    })

  it('is what the page of the vendors says', function () {
    if (process.env.RECORD_MATRIX) this.skip()
    assert.equal(SECTION.exec(readFileSync(PAGE, 'utf8'))?.[0], matrixText(known))
  })
})

/** Reads the event stream of a turn. */
function streamed(body: string): Turn {
  const events = body.split('\n\n').flatMap(block => {
    const data = /^data: (.*)$/m.exec(block)?.[1]
    return data ? [{ event: /^event: (.*)$/m.exec(block)?.[1] ?? '', data: JSON.parse(data) }] : []
  })
  const failed = events.find(({ event }) => event === 'error')?.data
  const text = events.find(({ event }) => event === 'completed')?.data.output?.content ?? ''
  return { text, error: failed ? `${failed.code}: ${failed.message}` : null, body }
}
