/** Label of values beyond the limits. */
export const OTHER = 'other'

/**
 * Limits the values of a metric label that callers choose, such as model names: each group has a maximum number of values in
 * total and per project, and further values become `other`. This bounds the size of /metrics and the memory of a scraper.
 */
class LabelValues {
  readonly #max: number
  readonly #maxPerProject: number
  readonly #groups = new Map<string, { values: Set<string>; counts: Map<string, number> }>()

  /**
   * @param max maximum values per group
   * @param maxPerProject maximum values that one project adds to a group
   */
  constructor(max: number, maxPerProject: number) {
    this.#max = max
    this.#maxPerProject = maxPerProject
  }

  /** Returns the label of a value. The project `known` adds no new value. */
  of(group: string, value: string, project: string | 'known'): string {
    const existing = this.#groups.get(group)
    if (existing?.values.has(value)) return value
    if (project === 'known') return OTHER
    const { values, counts } = existing ?? { values: new Set(), counts: new Map<string, number>() }
    const count = counts.get(project) ?? 0
    if (values.size >= this.#max || count >= this.#maxPerProject) return OTHER
    values.add(value)
    counts.set(project, count + 1)
    this.#groups.set(group, { values, counts })
    return value
  }
}

/** Labels of model names by provider type. Only a model that has responded gets a label. */
export const modelLabels = new LabelValues(30, 10)
