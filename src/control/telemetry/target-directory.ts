import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { changeSpanTargets } from '#core/base/telemetry.ts'
import { TARGET_CHANNEL } from './model.ts'
import { listTargets } from './store.ts'

const RETRY_MS = 1000

/**
 * Keeps the targets of all projects known to the process, so that work finds its target without a statement. They are read at
 * the start, when one changes, and after the listening connection was lost: a notification is part of the commit of a change.
 */
class TargetDirectory {
  readonly #services: Services
  readonly #unsubscribe: (() => void) & { ready: Promise<unknown> }
  #known: readonly string[] = []
  #reading: Promise<void> | null = null
  #isStale = false
  #retry: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(services: Services) {
    this.#services = services
    const read = () => void this.#read()
    this.#unsubscribe = services.notifications.listen(TARGET_CHANNEL, read, { onReconnect: read })
  }

  /** Reads the targets once they cannot change unnoticed. */
  async open(): Promise<void> {
    await this.#unsubscribe.ready
    await this.#read()
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#retry)
    this.#unsubscribe()
    this.#replace([])
  }

  /** Reads the targets; a change during a read is read afterwards. */
  #read(): Promise<void> {
    this.#isStale = true
    this.#reading ??= this.#readWhileStale().finally(() => {
      this.#reading = null
    })
    return this.#reading
  }

  async #readWhileStale(): Promise<void> {
    const { pool, log } = this.#services
    while (this.#isStale && !this.#isClosed) {
      this.#isStale = false
      try {
        this.#replace(await listTargets(pool))
      } catch (error) {
        log.error({ err: error }, 'telemetry targets not read')
        this.#retry = setTimeout(() => void this.#read(), RETRY_MS)
      }
    }
  }

  #replace(rows: Awaited<ReturnType<typeof listTargets>>): void {
    changeSpanTargets(targets => {
      for (const id of this.#known) targets.delete(id)
      if (this.#isClosed) return
      for (const { project_id, kinds, ...target } of rows) targets.set(project_id, { ...target, kinds: new Set(kinds) })
    }, this.#services)
    this.#known = this.#isClosed ? [] : rows.map(({ project_id }) => project_id)
  }
}

export const targetDirectory = processSingleton(
  (services: Services) => new TargetDirectory(services),
  directory => directory.close(),
)
