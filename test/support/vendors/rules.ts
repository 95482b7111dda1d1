/** Support of a rule: several independent sources, one source, or none that proves it. */
export type Source = 'S' | '1' | '?'

/** A model call as a simulator receives it. */
export type Call = {
  vendor: string
  /** API key, which selects the plan of the call. */
  lane: string
  model: string
  stream: boolean
  path: string
  headers: Record<string, string | string[] | undefined>
  body: any
  /** Facts about earlier answers of the lane that its later requests must agree with, by the ID of a call or item. */
  issued: Map<string, unknown>
}

/** Values of the placeholders in the message of a rule. */
export type Breach = Record<string, string | number>

/** A rule of a vendor, which refuses requests that break it. Rules of source `?` only record them. */
export type Rule = {
  name: string
  source: Source
  /** Month of the newest source; 2026-11 where only the rule is known, and the words of the message are not quoted. */
  date: string
  /** Message of the vendor, with `{placeholders}`. */
  message: string
  /** Further fields of the error, where they differ from most rules. */
  error?: { status?: number; type?: string; code?: string; param?: string }
  /** Returns where a request breaks the rule, or null. */
  breach(call: Call): Breach | null
}

export type Refusal = { rule: string; source: Source; message: string; error: NonNullable<Rule['error']> }

const fill = (message: string, values: Breach): string =>
  message.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole))

/** Returns the refusals of a call in the order of the rules, including those that are only recorded. */
export function refusalsOf(rules: readonly Rule[], call: Call): Refusal[] {
  return rules.flatMap(({ name, source, message, error = {}, breach }) => {
    const values = breach(call)
    if (values === null) return []
    const filled = error.param === undefined ? error : { ...error, param: fill(error.param, values) }
    return [{ rule: name, source, message: fill(message, values), error: filled }]
  })
}

/** Returns the rules with their messages placed in another one, such as the wrapper of a cloud. */
export const wrapped = (rules: readonly Rule[], prefix: string): Rule[] =>
  rules.map(rule => ({ ...rule, message: prefix + rule.message }))

/** Returns the first breach that a generator finds. */
export const first =
  (find: (call: Call) => Iterable<Breach>) =>
  (call: Call): Breach | null => {
    for (const breach of find(call)) return breach
    return null
  }
