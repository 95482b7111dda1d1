import type { Counter } from 'prom-client'
import { labelOf } from './instruments.ts'
import { OTHER } from './label-values.ts'
import { registry } from './metrics.ts'

/** Label of metrics that count by project; absent unless projects have labels. */
export const PROJECT_LABEL = labelOf('muster.project_id')

const MAX_LABELS = 200

/** Projects whose work is counted for the ranking. */
const MAX_COUNTED = 10_000

const RANK_MS = 60_000

/**
 * Projects with a label: the busiest ones by work of this process, of which work of earlier minutes counts half as much a minute.
 * Series of a project that is displaced end, and its work counts as `other`.
 */
class ProjectLabels {
  #timer: NodeJS.Timeout | undefined
  #counts = new Map<string, number>()
  #labelled = new Set<string>()

  /** Begins to label projects. */
  enable(): void {
    this.#timer ??= setInterval(() => void this.rank(), RANK_MS).unref()
  }

  disable(): void {
    clearInterval(this.#timer)
    this.#timer = undefined
    this.#counts.clear()
    this.#labelled.clear()
  }

  /** Counts work of a project and returns the labels of the project. */
  of(projectId: string): { [PROJECT_LABEL]?: string } {
    if (!this.#timer) return {}
    const count = this.#counts.get(projectId)
    if (count !== undefined || this.#counts.size < MAX_COUNTED) this.#counts.set(projectId, (count ?? 0) + 1)
    if (this.#labelled.size < MAX_LABELS) this.#labelled.add(projectId)
    return { [PROJECT_LABEL]: this.#labelled.has(projectId) ? projectId : OTHER }
  }

  /** Gives the labels to the busiest projects. */
  async rank(): Promise<void> {
    const ranked = [...this.#counts].sort((a, b) => b[1] - a[1])
    const busiest = new Set(ranked.slice(0, MAX_LABELS).map(([id]) => id))
    const displaced = new Set([...this.#labelled].filter(id => !busiest.has(id)))
    this.#labelled = busiest
    this.#counts = new Map(ranked.map(([id, count]) => [id, count / 2] as const).filter(([, count]) => count >= 1 / 64))
    if (displaced.size > 0) await endSeries(displaced)
  }
}

async function endSeries(projects: ReadonlySet<string>): Promise<void> {
  const metrics = registry.getMetricsAsArray() as unknown as (Counter & { labelNames: string[] })[]
  for (const metric of metrics.filter(({ labelNames }) => labelNames.includes(PROJECT_LABEL)))
    for (const { labels } of (await metric.get()).values)
      if (projects.has(String(labels[PROJECT_LABEL]))) metric.remove(labels as Record<string, string>)
}

export const projectLabels = new ProjectLabels()
