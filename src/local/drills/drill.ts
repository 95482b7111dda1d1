import { setTimeout as sleep } from 'node:timers/promises'
import { startDouble } from '../double/server.ts'
import { type Credential, must } from './api.ts'
import { type Database, Deployment, openDatabase, type ProcessKind } from './deployment.ts'
import { KINDS, type Kind, MODEL_SCRIPTS, type Prepared, prepare } from './kinds.ts'
import { type Load, startLoad } from './load.ts'
import type { Profile } from './names.ts'
import { ALWAYS, judge, type PromiseName } from './promises.ts'
import { type Receiver, type ReceiverOptions, startReceiver } from './receiver.ts'
import { balance, countOpen, observe } from './reconcile.ts'
import { buildReport, type Report } from './report.ts'
import { StalledError, waitUntilNone } from './wait.ts'

/** The drill cannot be run here; the message is the reason. */
export class NotPossibleError extends Error {}

/** A running drill, as its steps use it. */
export type Scene = {
  /** Seconds for which the load lasts. */
  seconds: number
  /** The deployment of the drill; null for `--url`. */
  deployment: Deployment | null
  database: Database | null
  receiver: Receiver
  double: { url: string; port: number; stop(): Promise<void>; restart(): Promise<void> }
  prepared: Prepared
  load: Load
  /** Calls the API as the load does. */
  api(method: string, path: string, body?: object): Promise<any>
  /** Adds a line to the report. */
  note(text: string): void
}

/** A deployment of which the drill breaks processes. */
export type OwnScene = Scene & { deployment: Deployment; database: Database }

/** A drill: how a loaded deployment is broken, and the promises that it must keep. */
export type Drill = {
  name: string
  summary: string
  /** Duration of the load with the profile `short`. */
  seconds: number
  /** Promises in addition to the promises of every drill. */
  promises?: readonly PromiseName[]
  kinds?: readonly Kind[]
  /** Pause of the caller of each kind of work. */
  pauseMs?: number
  /** Whether the stored sums of usage are left out, of which only totals are checked then. */
  omitsUsageSums?: boolean
  /** Whether it breaks nothing but its own doubles, so that it may run against a deployment that others use. */
  staging?: boolean
  processes?: Record<ProcessKind, number>
  env?: Record<string, string>
  /** @throws NotPossibleError */
  requires?(): void | Promise<void>
  /** Opens the database, default a new one. */
  openDatabase?(serverUrl?: string): Promise<Database>
  /** Starts the processes, default of this checkout after its migrations. */
  startProcesses?(deployment: Deployment): Promise<void>
  /** Breaks the deployment while it is loaded. */
  break(scene: OwnScene): Promise<void>
  /** Steps of an operator after the load, before the work is reconciled. */
  repair?(scene: OwnScene): Promise<void>
}

const FACTORS: Record<Profile, number> = { short: 1, nightly: 10 }

/** Returns for how many seconds a drill loads the deployment. */
export const loadSeconds = (
  { seconds: short }: Pick<Drill, 'seconds'>,
  { seconds, profile = 'short' }: Pick<DrillOptions, 'seconds' | 'profile'>,
): number => seconds ?? short * FACTORS[profile]

export type DrillOptions = {
  /** Duration of the load, in place of the duration of the profile. */
  seconds?: number
  /** Default `short`. */
  profile?: Profile
  /** Server on which the database of the drill is created, default an embedded one. */
  databaseUrl?: string
  /** A deployment to run against, with an admin's token; `host` is the address at which it reaches this machine. */
  staging?: Credential & { host: string }
  receiver?: ReceiverOptions
  onProgress?: (text: string) => void
  signal?: AbortSignal
}

/** Closes everything that a drill has opened, the newest first, also while it is opened. */
class Cleanup {
  readonly #steps: (() => Promise<unknown>)[] = []
  #ending: Promise<void> | undefined

  async add<T>(opening: Promise<T>, close: (opened: T) => Promise<unknown>): Promise<T> {
    this.#steps.push(() => opening.then(close, () => {}))
    return opening
  }

  end(): Promise<void> {
    this.#ending ??= this.#closeAll()
    return this.#ending
  }

  async #closeAll(): Promise<void> {
    for (const step of this.#steps.reverse()) await step().catch(() => {})
  }
}

/**
 * Runs a drill and returns its report. Everything that it has started is ended, also when `signal` aborts.
 * @throws NotPossibleError
 */
export async function runDrill(drill: Drill, options: DrillOptions = {}): Promise<Report> {
  const { staging, signal } = options
  if (staging && !drill.staging)
    throw new NotPossibleError(
      `${drill.name} breaks processes of the deployment, and runs only on a deployment that it starts`,
    )
  await drill.requires?.()
  const cleanup = new Cleanup()
  const aborted = new Promise<never>((_resolve, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
  aborted.catch(() => {})
  try {
    signal?.throwIfAborted()
    return await Promise.race([perform(drill, options, cleanup), aborted])
  } finally {
    await cleanup.end()
  }
}

async function perform(drill: Drill, options: DrillOptions, cleanup: Cleanup): Promise<Report> {
  const { staging, onProgress = () => {} } = options
  const seconds = loadSeconds(drill, options)
  const startedAt = Date.now()
  const notes: Report['timeline'][number][] = []
  const note = (text: string) => {
    notes.push({ at_seconds: Math.round((Date.now() - startedAt) / 100) / 10, text })
    onProgress(text)
  }
  const host = staging?.host ?? '127.0.0.1'
  const receiver = await cleanup.add(startReceiver({ host, ...options.receiver }), opened => opened.close())
  const double = await cleanup.add(startModel(host), opened => opened.stop())
  const own = staging ? null : await startOwn(drill, options.databaseUrl, cleanup)
  const url = () => staging?.url ?? own?.deployment.running.web[0]?.url ?? ''
  const admin = staging ?? { url: url(), token: (await own?.deployment.signIn()) ?? null }
  const prepared = await prepareProject(admin, { receiver, doubleUrl: double.url }, staging !== undefined, cleanup)
  const kinds = drill.kinds ?? KINDS
  const targets = () => (staging ? [staging.url] : (own?.deployment.running.web.map(each => each.url) ?? []))
  const load = startLoad(kinds, prepared, targets, drill.pauseMs)
  const credential = {
    token: prepared.key,
    get url() {
      return url()
    },
  }
  const api: Scene['api'] = (method, path, body) => must(credential, method, path, body)
  const scene = {
    seconds,
    deployment: own?.deployment ?? null,
    database: own?.database ?? null,
    receiver,
    double,
    prepared,
    load,
    api,
    note,
  } as OwnScene
  note('loaded')
  const stalls: string[] = []
  const noteStall = (error: unknown) => {
    if (!(error instanceof StalledError)) throw error
    stalls.push(error.message)
    note(error.message)
  }
  try {
    await breakLoaded(drill, scene).catch(noteStall)
  } catch (error) {
    // The failure of the step comes first.
    await load.end().catch(() => {})
    throw error
  }
  await load.end()
  note('load ended')
  await drill.repair?.(scene).catch(noteStall)
  // Requests may fail meanwhile.
  const open = () => countOpen(credential, kinds, prepared, load.ledger).catch(() => Infinity)
  await waitUntilNone('open work', open).then(() => note('all work has ended'), noteStall)
  const observed = await observe(
    credential,
    kinds,
    prepared,
    { receiver, doubleUrl: double.url },
    own?.deployment ?? null,
    drill.omitsUsageSums,
  )
  const { ledger, refusals } = load
  const reports = kinds.map(kind => balance(kind, ledger, observed))
  const names = [...ALWAYS, ...(drill.promises ?? [])]
  const uncleanStops = own?.deployment.uncleanStops ?? []
  const promises = judge(names, { kinds, reports, ledger, observed, refusals, stalls, uncleanStops })
  const postgres = own && (await own.version())
  return buildReport({ drill: drill.name, startedAt, seconds, postgres, kinds: reports, promises, timeline: notes })
}

/** Breaks a deployment that serves the load, until the load has lasted and is served again. */
async function breakLoaded(drill: Drill, scene: OwnScene): Promise<void> {
  const endsAt = Date.now() + scene.seconds * 1000
  await scene.load.progress()
  await drill.break(scene)
  await sleep(Math.max(0, endsAt - Date.now()))
  await scene.load.progress()
}

/** The model double, which can be stopped and started again on its port. */
export async function startModel(host: string): Promise<Scene['double']> {
  let running = await startDouble({ host, scripts: MODEL_SCRIPTS })
  const { url, port } = running
  return {
    url,
    port,
    stop: () => running.close(),
    restart: async () => {
      running = await startDouble({ host, port, scripts: MODEL_SCRIPTS })
    },
  }
}

async function startOwn(drill: Drill, serverUrl: string | undefined, cleanup: Cleanup) {
  const opening = drill.openDatabase ?? openDatabase
  const database = await cleanup.add(opening(serverUrl), opened => opened.close())
  const deployment = new Deployment({ databaseUrl: database.url, env: drill.env })
  await cleanup.add(Promise.resolve(deployment), opened => opened.close())
  if (drill.startProcesses) await drill.startProcesses(deployment)
  else {
    await deployment.command(['migrate'])
    await deployment.startAll(drill.processes ?? { web: 2, worker: 2 })
  }
  return { database, deployment, version: () => deployment.databaseVersion() }
}

async function prepareProject(
  admin: Credential,
  doubles: { receiver: Receiver; doubleUrl: string },
  isStaging: boolean,
  cleanup: Cleanup,
): Promise<Prepared> {
  const preparing = prepare(admin, doubles).catch(error => {
    if (!isStaging) throw error
    throw new NotPossibleError(`the deployment does not allow the project of the drill: ${error.message}`)
  })
  return cleanup.add(preparing, async ({ project_id }) => {
    if (isStaging) await must(admin, 'DELETE', `/projects/${project_id}?force=true`)
  })
}
