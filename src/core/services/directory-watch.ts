import { exclusiveLoop } from '../base/loop.ts'
import type { Services } from '../base/services.ts'

const CHANNEL = 'muster_cells'

/** Time between two reads of the directory without a notification, after which a cell that did not open is tried again. */
const PERIOD_MS = 5000

/** Reads the directory of cells when it changes, and periodically, in case a notification is lost. */
export class DirectoryWatch {
  readonly #home: Services
  readonly #read: () => Promise<unknown>
  readonly #refresh: () => Promise<void>
  #timer: NodeJS.Timeout | undefined
  #unlisten: (() => void) | undefined
  #isStale = false
  #isStopped = false

  constructor(home: Services, read: () => Promise<unknown>) {
    this.#home = home
    this.#read = read
    this.#refresh = exclusiveLoop('cells', { periodMs: PERIOD_MS, log: home.log }, () => this.#readUntilCurrent())
  }

  /**
   * Listens for changes of the directory, reads it, and reads it again periodically.
   * @param readFirst reads it the first time
   */
  async start(readFirst: () => Promise<unknown>): Promise<void> {
    const refresh = () => {
      this.#isStale = true
      void this.#refresh()
    }
    const unlisten = this.#home.notifications.listen(CHANNEL, refresh, { onReconnect: refresh })
    this.#unlisten = unlisten
    await unlisten.ready
    await readFirst()
    this.#timer = setInterval(refresh, PERIOD_MS)
    this.#timer.unref()
  }

  stop(): void {
    this.#isStopped = true
    clearInterval(this.#timer)
    this.#unlisten?.()
  }

  /** Reads the directory again if it has changed during the read. */
  async #readUntilCurrent(): Promise<void> {
    do {
      this.#isStale = false
      await this.#read()
    } while (this.#isStale && !this.#isStopped)
  }
}
