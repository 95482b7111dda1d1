import { RerunAfter } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { allocateNumbers, lockNextNumber } from './store.ts'

/** A number that was drawn and not taken within this is left out: it would come after higher ones. */
const FRESH_MS = 10_000

type Drawing = { asked: number; next: Promise<void> | null }

/**
 * Numbers of cases, drawn for creates that wait: a create that takes the next number itself keeps it locked until it commits, so
 * of many at once the others would go one after the other. They have the numbers of all that wait drawn in one statement, and
 * go on together.
 */
class CaseNumbers {
  readonly #db: Queryable
  readonly #drawn = new Map<string, { number: number; at: number }[]>()
  readonly #drawing = new Map<string, Drawing>()

  constructor(db: Queryable) {
    this.#db = db
  }

  take(project: string): number | null {
    const drawn = this.#drawn.get(project) ?? []
    for (let each = drawn.shift(); each; each = drawn.shift())
      if (performance.now() - each.at < FRESH_MS) return each.number
    this.#drawn.delete(project)
    return null
  }

  /** Draws one more, with those of all who ask before it is their turn. */
  draw(project: string): Promise<void> {
    const drawing = this.#drawing.get(project) ?? { asked: 0, next: null }
    this.#drawing.set(project, drawing)
    drawing.asked++
    drawing.next ??= this.#run(project, drawing)
    return drawing.next
  }

  async #run(project: string, drawing: Drawing): Promise<void> {
    // Whoever asks in the same turn of the event loop is drawn for, too.
    await new Promise(setImmediate)
    const count = drawing.asked
    this.#drawing.delete(project)
    const last = await allocateNumbers(this.#db, project, count)
    const at = performance.now()
    const drawn = this.#drawn.get(project) ?? []
    for (let number = last - count + 1; number <= last; number++) drawn.push({ number, at })
    this.#drawn.set(project, drawn)
  }
}

const numbersOf = processSingleton(services => new CaseNumbers(services.pool))

/**
 * The number of a case that a transaction makes. Of those that are made at once one holds the next number until it commits, and
 * the others then go on side by side.
 * @throws RunFirst while another transaction has the next number
 */
export async function allocateNumber(
  tx: Queryable,
  services: Pick<Services, 'state'>,
  project: string,
): Promise<number> {
  const numbers = numbersOf(services)
  const number = numbers.take(project) ?? (await lockNextNumber(tx, project))
  if (number === null) throw new RerunAfter(() => numbers.draw(project))
  return number
}
