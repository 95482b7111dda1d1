import type { Edge } from './definition.ts'
import type { Graph } from './graph.ts'

/**
 * Data-flow analysis of a graph: nodes and state keys that are available when a node is activated, on every branch or
 * on some.
 */

/** A set of small integers. */
class Bits {
  readonly words: Uint32Array

  constructor(size: number) {
    this.words = new Uint32Array(Math.ceil(size / 32))
  }

  has(bit: number): boolean {
    return (this.words[bit >>> 5] & (1 << (bit & 31))) !== 0
  }

  add(bit: number): this {
    this.words[bit >>> 5] |= 1 << (bit & 31)
    return this
  }

  addAll({ words }: Bits): this {
    for (let index = 0; index < words.length; index++) this.words[index] |= words[index]
    return this
  }

  retain({ words }: Bits): this {
    for (let index = 0; index < words.length; index++) this.words[index] &= words[index]
    return this
  }

  hasAny(bits: readonly number[]): boolean {
    return bits.some(bit => this.has(bit))
  }

  *[Symbol.iterator](): Generator<number> {
    for (let index = 0; index < this.words.length; index++)
      for (let word = this.words[index]; word !== 0; word &= word - 1)
        yield index * 32 + (31 - Math.clz32(word & -word))
  }
}

/** Edges that must all pass to activate their target. */
type Alternative = readonly Edge[]

/** Returns the alternatives that activate a node; one suffices. */
function alternativesOf(incoming: readonly Edge[]): Alternative[] {
  const groups = Map.groupBy(incoming, ({ activation_group }) => activation_group ?? null)
  return [...groups].flatMap(([group, edges]) =>
    group !== null && (edges[0].activation_condition ?? 'all') === 'all' ? [edges] : edges.map(edge => [edge]),
  )
}

/** A group of edges that requires two labels of the same node, which completes with only one. */
export type ImpossibleJoin = { edge: Edge; decision: string }

/** Limit of state keys for which joint writes by several nodes are analyzed. */
const MAX_JOINT_KEYS = 200

/**
 * Flow through a graph without forbidden cycles. A bit set per node contains the nodes completed before it and their
 * labels; the cost is about the number of edges times a 32nd of the number of nodes and labels.
 */
export class Flow {
  readonly #order: readonly string[]
  readonly #positions: ReadonlyMap<string, number>
  readonly #alternatives = new Map<string, Alternative[]>()
  readonly #upstream = new Map<string, Bits>()
  readonly #certain = new Map<string, Bits>()
  readonly #writers = new Map<string, number[]>()
  readonly #joint = new Map<string, ReadonlySet<string>>()
  /** Nodes reachable from the start nodes. */
  readonly reachable: ReadonlySet<string>
  readonly impossibleJoins: readonly ImpossibleJoin[]

  /** @param writes state keys written by each node */
  constructor(graph: Graph & { sorted: readonly string[] }, writes: ReadonlyMap<string, Iterable<string>>) {
    this.#order = graph.sorted
    this.#positions = new Map(this.#order.map((id, index) => [id, index]))
    const size = this.#order.length
    for (const [id, keys] of writes) {
      const position = this.#positionOf(id)
      for (const key of new Set(keys)) {
        const writers = this.#writers.get(key)
        if (writers) writers.push(position)
        else this.#writers.set(key, [position])
      }
    }
    const reachable = new Set(graph.starts)
    const labels = labelsOf(graph, size)
    const joins: ImpossibleJoin[] = []
    for (const id of this.#order) {
      const incoming = graph.incoming.get(id) ?? []
      const alternatives = alternativesOf(incoming)
      this.#alternatives.set(id, alternatives)
      const upstream = new Bits(size)
      for (const { from } of incoming) upstream.addAll(this.#upstream.get(from) as Bits).add(this.#positionOf(from))
      this.#upstream.set(id, upstream)
      if (incoming.some(({ from }) => reachable.has(from))) reachable.add(id)
      let certain: Bits | undefined
      for (const edges of alternatives) {
        if (!edges.every(({ from }) => reachable.has(from))) continue
        const available = new Bits(size + labels.count)
        for (const edge of edges) {
          available.addAll(this.#certain.get(edge.from) as Bits).add(this.#positionOf(edge.from))
          const label = labels.bit(edge)
          if (label !== null) available.add(label)
        }
        const decision = edges.length > 1 ? labels.contradiction(available) : null
        if (decision !== null) joins.push({ edge: edges[0], decision })
        certain = certain ? certain.retain(available) : available
      }
      // An unreachable node is treated as if all its upstream nodes completed.
      this.#certain.set(id, certain ?? new Bits(size + labels.count).addAll(upstream))
    }
    this.reachable = reachable
    this.impossibleJoins = joins
  }

  #positionOf(id: string): number {
    return this.#positions.get(id) as number
  }

  /** Returns whether a node completes before another node: never, on some branches, or always. */
  before(reader: string, id: string): 'never' | 'maybe' | 'always' {
    const position = this.#positions.get(id)
    if (position === undefined || !this.#upstream.get(reader)?.has(position)) return 'never'
    return this.#certain.get(reader)?.has(position) ? 'always' : 'maybe'
  }

  /** Returns whether a state key is written before a node. */
  written(reader: string, key: string): 'never' | 'maybe' | 'always' {
    const writers = this.#writers.get(key)
    if (!writers || !this.#upstream.get(reader)?.hasAny(writers)) return 'never'
    if (this.#certain.get(reader)?.hasAny(writers)) return 'always'
    return this.#jointlyWritten(key, writers).has(reader) ? 'always' : 'maybe'
  }

  /** Returns the nodes before which a key is written on every branch, by a different node on each. */
  #jointlyWritten(key: string, positions: readonly number[]): ReadonlySet<string> {
    const available = this.#joint.get(key)
    if (available) return available
    const before = new Set<string>()
    if (positions.length > 1 && this.#joint.size < MAX_JOINT_KEYS) {
      const writers = new Set(positions)
      const after = ({ from }: Edge) => before.has(from) || writers.has(this.#positionOf(from))
      for (const id of this.#order) {
        const possible = (this.#alternatives.get(id) as Alternative[]).filter(edges =>
          edges.every(({ from }) => this.reachable.has(from)),
        )
        if (possible.length > 0 && possible.every(edges => edges.some(after))) before.add(id)
      }
    }
    this.#joint.set(key, before)
    return before
  }
}

/** Assigns a bit to each label that edges compare with, per source node. */
function labelsOf(graph: Graph, first: number) {
  const bits = new Map<string, Map<string, number>>()
  const decisions: string[] = []
  const labelOf = ({ from, condition }: Edge): string | null =>
    condition ?? (graph.node(from)?.type === 'approval' ? 'approved' : null)
  for (const edge of [...graph.outgoing.values()].flat()) {
    const label = labelOf(edge)
    if (label === null) continue
    const ofNode = bits.get(edge.from) ?? new Map<string, number>()
    bits.set(edge.from, ofNode)
    if (ofNode.has(label)) continue
    ofNode.set(label, first + decisions.length)
    decisions.push(edge.from)
  }
  return {
    count: decisions.length,
    bit(edge: Edge): number | null {
      const label = labelOf(edge)
      return label === null ? null : (bits.get(edge.from)?.get(label) ?? null)
    },
    /** Returns a node of which the set contains two labels. Labels of a node need not be adjacent. */
    contradiction(available: Bits): string | null {
      const seen = new Set<string>()
      for (const bit of available) {
        if (bit < first) continue
        const decision = decisions[bit - first]
        if (seen.has(decision)) return decision
        seen.add(decision)
      }
      return null
    },
  }
}
