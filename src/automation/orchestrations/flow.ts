import type { Edge } from './definition.ts'
import type { Graph } from './graph.ts'

/** What is known of a run by the time one of its nodes is activated, whatever branches it has taken. */

/** A set of small numbers. */
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

  keep({ words }: Bits): this {
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

/** Edges of which all have to pass to activate their target. */
type Alternative = readonly Edge[]

/** What activates a node: any one of these. */
function alternativesOf(incoming: readonly Edge[]): Alternative[] {
  const groups = Map.groupBy(incoming, ({ activation_group }) => activation_group ?? null)
  return [...groups].flatMap(([group, edges]) =>
    group !== null && (edges[0].activation_condition ?? 'all') === 'all' ? [edges] : edges.map(edge => [edge]),
  )
}

/** A group of edges that needs two labels of one node, which completes under one. */
export type ImpossibleJoin = { edge: Edge; decision: string }

/** Keys of the state of which it is found out whether several writers together always write them. */
const MAX_JOINT_KEYS = 200

/**
 * The flow through a graph without forbidden cycles. Sets are bits: those of a node what was completed before it, and which
 * labels that were; about as much work as the graph has edges times a 32nd of what it has nodes and labels.
 */
export class Flow {
  readonly #order: readonly string[]
  readonly #place: ReadonlyMap<string, number>
  readonly #alternatives = new Map<string, Alternative[]>()
  readonly #upstream = new Map<string, Bits>()
  readonly #certain = new Map<string, Bits>()
  readonly #writers = new Map<string, number[]>()
  readonly #joint = new Map<string, ReadonlySet<string>>()
  /** Nodes that a path leads to from where runs begin. */
  readonly reachable: ReadonlySet<string>
  readonly impossibleJoins: readonly ImpossibleJoin[]

  /** @param writes the keys of the state that each node writes */
  constructor(graph: Graph & { sorted: readonly string[] }, writes: ReadonlyMap<string, Iterable<string>>) {
    this.#order = graph.sorted
    this.#place = new Map(this.#order.map((id, index) => [id, index]))
    const size = this.#order.length
    for (const [id, keys] of writes) {
      const place = this.#at(id)
      for (const key of new Set(keys)) {
        const writers = this.#writers.get(key)
        if (writers) writers.push(place)
        else this.#writers.set(key, [place])
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
      for (const { from } of incoming) upstream.addAll(this.#upstream.get(from) as Bits).add(this.#at(from))
      this.#upstream.set(id, upstream)
      if (incoming.some(({ from }) => reachable.has(from))) reachable.add(id)
      let certain: Bits | undefined
      for (const edges of alternatives) {
        if (!edges.every(({ from }) => reachable.has(from))) continue
        const known = new Bits(size + labels.count)
        for (const edge of edges) {
          known.addAll(this.#certain.get(edge.from) as Bits).add(this.#at(edge.from))
          const label = labels.bit(edge)
          if (label !== null) known.add(label)
        }
        const decision = edges.length > 1 ? labels.contradiction(known) : null
        if (decision !== null) joins.push({ edge: edges[0], decision })
        certain = certain ? certain.keep(known) : known
      }
      // What never happens is never without what it reads.
      this.#certain.set(id, certain ?? new Bits(size + labels.count).addAll(upstream))
    }
    this.reachable = reachable
    this.impossibleJoins = joins
  }

  #at(id: string): number {
    return this.#place.get(id) as number
  }

  /** Whether a node is completed before another one: never, on some branches, or always. */
  before(reader: string, id: string): 'never' | 'maybe' | 'always' {
    const place = this.#place.get(id)
    if (place === undefined || !this.#upstream.get(reader)?.has(place)) return 'never'
    return this.#certain.get(reader)?.has(place) ? 'always' : 'maybe'
  }

  /** Whether a key of the state is written before a node. */
  written(reader: string, key: string): 'never' | 'maybe' | 'always' {
    const writers = this.#writers.get(key)
    if (!writers || !this.#upstream.get(reader)?.hasAny(writers)) return 'never'
    if (this.#certain.get(reader)?.hasAny(writers)) return 'always'
    return this.#jointlyWritten(key, writers).has(reader) ? 'always' : 'maybe'
  }

  /** The nodes before which a key is written on every branch, though each by another node. */
  #jointlyWritten(key: string, places: readonly number[]): ReadonlySet<string> {
    const known = this.#joint.get(key)
    if (known) return known
    const before = new Set<string>()
    if (places.length > 1 && this.#joint.size < MAX_JOINT_KEYS) {
      const writers = new Set(places)
      const after = ({ from }: Edge) => before.has(from) || writers.has(this.#at(from))
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

/** A bit for each label that edges ask of each node. */
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
    /** A node of which two labels are in a set. Labels of a node need not be next to each other. */
    contradiction(known: Bits): string | null {
      const seen = new Set<string>()
      for (const bit of known) {
        if (bit < first) continue
        const decision = decisions[bit - first]
        if (seen.has(decision)) return decision
        seen.add(decision)
      }
      return null
    },
  }
}
