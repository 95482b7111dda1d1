/** What a value is called that has no place of its own. */
const OTHER = 'other'

/**
 * Bounds the values of a metric label that callers choose, such as names of models: each group keeps the first few, of which
 * one project names a part, and every further value is `other`. So no caller makes /metrics, or the memory of a scraper, grow.
 */
export class LabelValues {
  readonly #most: number
  readonly #ofProject: number
  readonly #groups = new Map<string, { values: Set<string>; named: Map<string, number> }>()

  /**
   * @param most values of a group
   * @param ofProject values that one project adds to a group
   */
  constructor(most: number, ofProject: number) {
    this.#most = most
    this.#ofProject = ofProject
  }

  /** The label of a value; `known` adds none. */
  of(group: string, value: string, project: string | 'known'): string {
    const found = this.#groups.get(group)
    if (found?.values.has(value)) return value
    if (project === 'known') return OTHER
    const { values, named } = found ?? { values: new Set(), named: new Map<string, number>() }
    const count = named.get(project) ?? 0
    if (values.size >= this.#most || count >= this.#ofProject) return OTHER
    values.add(value)
    named.set(project, count + 1)
    this.#groups.set(group, { values, named })
    return value
  }
}

/** Names of models, by the type of their provider. Only a model that has answered gets a label of its own. */
export const modelLabels = new LabelValues(30, 10)
