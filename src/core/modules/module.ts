import type { Metric } from 'prom-client'
import { type PolicyAction, policyActions, policyTypes } from '../api/catalogue.ts'
import { commandsOf, workerCommands } from '../api/commands.ts'
import { type Kind, kinds } from '../api/kind.ts'
import { type Operation, operations, operationTags } from '../api/operation.ts'
import { type ResourceType, resourceTypes } from '../api/resource-type.ts'
import { type Extension, registerExtensions } from '../base/declarations.ts'
import { type ErrorTable, errorTable } from '../base/errors.ts'
import { registry } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { type SealedColumn, sealedColumns } from '../db/sealed.ts'
import { queues } from '../queues/queue.ts'
import type { BackgroundTask, Handler, Schedule } from '../work/handler.ts'
import { type Sweep, scheduleOf, sweeps } from '../work/sweeps.ts'
import { type Work, workHandlers, works } from '../work/work.ts'
import { type EventSource, eventTypes, eventTypesOf } from '../writes/events.ts'

/** The declarations of one module: a process consists of its modules. */
export type Module = {
  name: string
  errors?: ErrorTable
  kinds?: readonly Kind<any, any>[]
  /** Resource types of templates. */
  resourceTypes?: readonly ResourceType[]
  /** Event sources that are not kinds. */
  eventSources?: readonly EventSource<any, any>[]
  operations?: readonly Operation[]
  /** Descriptions of the tags of its operations. */
  tags?: Readonly<Record<string, string>>
  /** Kinds of durable work, with their queues, handlers and sweeps. */
  work?: readonly Work[]
  /** Handlers of queues; a queue exists because it has a handler. */
  handlers?: readonly Handler[]
  schedules?: readonly Schedule[]
  sweeps?: readonly Sweep[]
  background?: readonly BackgroundTask[]
  sealedColumns?: readonly SealedColumn[]
  /** Metrics for /metrics, created with `registers: []`. */
  metrics?: readonly Metric[]
  /** Actions for policies that are not the main action of an operation. */
  policyActions?: readonly PolicyAction[]
  /** Resource types for policies that are neither a kind nor declared by an operation. */
  policyTypes?: readonly string[]
  /** Contributions to extension points of earlier modules. */
  extensions?: readonly Extension[]
  /** Run by web and worker before they accept requests or claim work, in module order. */
  start?: (services: Services, role: 'web' | 'worker') => Promise<unknown>
}

export const module = (name: string, parts: Omit<Module, 'name'>): Module => ({ name, ...parts })

let loaded: readonly Module[] = []

/** Returns the modules of this process. */
export const loadedModules = (): readonly Module[] => loaded

/**
 * Registers the modules of the process. Web, worker, command line and tests call it with the same list (src/modules.ts)
 * before any other code.
 * @throws Error for duplicate names, references to undeclared kinds, and conflicting commands
 */
export function loadModules(modules: readonly Module[]): void {
  const all = <K extends keyof Module>(part: K) =>
    modules.flatMap(module => (module[part] ?? []) as unknown as NonNullable<Module[K]> & readonly unknown[])
  errorTable.fill(
    modules
      .flatMap(({ errors = {} }) => Object.entries(errors))
      .map(([code, entry]) => ({ code, ...entry }))
      .sort((a, b) => (a.code < b.code ? -1 : 1)),
  )
  kinds.fill(all('kinds') as Kind[])
  for (const kind of kinds.all()) for (const reference of kind.references) kinds.get(reference.kind)
  eventTypes.fill([...(all('kinds') as Kind[]), ...(all('eventSources') as EventSource[])].flatMap(eventTypesOf))
  operations.fill(all('operations') as Operation[])
  resourceTypes.fill(all('resourceTypes') as ResourceType[])
  operationTags.fill(modules.flatMap(({ tags = {} }) => Object.entries(tags)))
  workerCommands.fill(commandsOf(operations.all()))
  works.fill(all('work') as Work[])
  queues.fill([...workHandlers(works.all()), ...(all('handlers') as Handler[])].map(({ queue }) => queue))
  sweeps.fill(all('sweeps') as Sweep[])
  sealedColumns.fill(all('sealedColumns') as SealedColumn[])
  policyActions.fill(all('policyActions') as PolicyAction[])
  policyTypes.fill(all('policyTypes') as string[])
  for (const metric of all('metrics') as Metric[]) registry.registerMetric(metric)
  registerExtensions(modules)
  loaded = modules
}

/** Returns the handlers, schedules and background tasks of a worker process with the given concerns. */
export function workForConcerns(concerns: readonly string[]): {
  handlers: Handler[]
  schedules: Schedule[]
  background: BackgroundTask[]
} {
  const here = ({ concern }: { concern: string }) => concerns.includes(concern)
  return {
    handlers: [...workHandlers(works.all()), ...loaded.flatMap(({ handlers = [] }) => handlers)].filter(({ queue }) =>
      here(queue),
    ),
    schedules: loaded
      .flatMap(({ schedules = [], sweeps = [], work = [] }) => [
        ...schedules,
        ...work.map(({ schedule }) => schedule),
        ...sweeps.map(scheduleOf),
      ])
      .filter(({ queue }) => here(queue)),
    background: loaded.flatMap(({ background = [] }) => background).filter(here),
  }
}

/** Returns all declared names, to compare processes. */
export const declaredNames = (): Record<string, string[]> => ({
  modules: loaded.map(({ name }) => name),
  kinds: kinds.all().map(({ name }) => name),
  operations: operations.all().map(({ id }) => id),
  errors: errorTable.all().map(({ code }) => code),
  queues: queues.all().map(({ name }) => name),
  events: eventTypes.all().map(({ name }) => name),
  sweeps: sweeps.all().map(({ name }) => name),
  sealed_columns: sealedColumns.all().map(({ table, column }) => `${table}.${column}`),
})
