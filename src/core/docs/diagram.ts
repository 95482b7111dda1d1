import { escapeHtml } from './html.ts'

/**
 * Draws state diagrams, which pages have as Mermaid: a column for each state and a row for each transition, an arrow between two
 * columns below its reason. So nothing overlaps, whatever the number of transitions.
 */

type Transition = { from: string; to: string; reason: string }
type Diagram = { states: string[]; groupOf: Map<string, string>; transitions: Transition[] }

/** Start and end in Mermaid. */
const OUTSIDE = '[*]'

const CHAR = 7
const ROW = 36
const PADDING = 10
const BOX = 28
const BAND = 24
const MIN_COLUMN = 70

/** Half of the width of the box of a state. */
const halfOf = (state: string): number => Math.max(state.length * CHAR + 2 * PADDING, MIN_COLUMN) / 2

/** Reads a Mermaid state diagram; null for other diagrams. A state within a group has its transitions there. */
export function parseStates(text: string): Diagram | null {
  const [first, ...lines] = text.trim().split('\n')
  if (first !== 'stateDiagram-v2') return null
  const groupOf = new Map<string, string>()
  const transitions: Transition[] = []
  let group = ''
  for (const line of lines) {
    const [, opened] = /^\s*state (\w+) \{$/.exec(line) ?? []
    if (opened !== undefined || line.trim() === '}') group = opened ?? ''
    const [, from, to, reason = ''] = /^\s*(\S+) --> (\S+)(?: : (.+))?$/.exec(line) ?? []
    if (from === undefined || to === undefined) continue
    if (group) for (const state of [from, to]) if (state !== OUTSIDE) groupOf.set(state, group)
    transitions.push({ from, to, reason })
  }
  const groups = new Set(groupOf.values())
  const named = transitions.flatMap(({ from, to }) => [from, to]).filter(each => each !== OUTSIDE)
  // The states of a group follow each other where the group is named first.
  const ordered = named.flatMap(each =>
    groups.has(each) ? named.filter(state => groupOf.get(state) === each) : [each],
  )
  return { states: [...new Set(ordered)], groupOf, transitions }
}

/** Where states and groups are drawn: the middle of a column, and the edges of a group. */
type Layout = { width: number; columns: Map<string, number>; groups: Map<string, [number, number]> }

function place({ states, groupOf, transitions }: Diagram): Layout {
  const columns = new Map<string, number>()
  const groups = new Map<string, [number, number]>()
  let at = 3 * PADDING
  let previous: string | undefined
  for (const state of states) {
    const group = groupOf.get(state)
    if (group !== previous) at += 3 * PADDING
    const half = halfOf(state)
    columns.set(state, at + half)
    if (group) groups.set(group, [groups.get(group)?.[0] ?? at - 2 * PADDING, at + 2 * half + PADDING])
    at += 2 * half + PADDING
    previous = group
  }
  const longest = Math.max(...transitions.map(({ reason }) => reason.length * CHAR))
  return { width: Math.max(at + PADDING, longest), columns, groups }
}

/** The ends of an arrow: columns, or the edges of a group that are nearest. */
function endsOf({ from, to }: Transition, { columns, groups }: Layout): [start: number, end: number] {
  const edge = (name: string, other: number) => {
    const [left, right] = groups.get(name) ?? [0, 0]
    return other > right ? right : left
  }
  const middle = (name: string) => columns.get(name) ?? groups.get(name)?.[0] ?? 0
  const start = columns.get(from) ?? edge(from, middle(to))
  const end = columns.get(to) ?? edge(to, middle(from))
  return [from === OUTSIDE ? end - 2.5 * PADDING : start, end]
}

function arrow(transition: Transition, layout: Layout, y: number): string {
  const [start, end] = endsOf(transition, layout)
  const reason = transition.reason || 'start'
  const left = Math.max(0, Math.min(start + 4, end + 4, layout.width - reason.length * CHAR))
  const text = `<text x="${left}" y="${y - 8}">${escapeHtml(reason)}</text>`
  if (start === end)
    return `${text}<path class="arrow" d="M${start} ${y - 4}h18v10h-12"/><path class="tip" d="M${start} ${y + 6}l8 -4v8z"/>`
  const back = start < end ? -8 : 8
  const dot = transition.from === OUTSIDE ? `<circle class="tip" cx="${start}" cy="${y}" r="5"/>` : ''
  return `${text}${dot}<path class="arrow" d="M${start} ${y}H${end + back}"/><path class="tip" d="M${end} ${y}l${back} -4v8z"/>`
}

function draw(diagram: Diagram): string {
  const layout = place(diagram)
  const rows = diagram.transitions.filter(({ to }) => to !== OUTSIDE)
  const ends = new Set(diagram.transitions.filter(({ to }) => to === OUTSIDE).map(({ from }) => from))
  const top = layout.groups.size > 0 ? BAND : 2
  const height = top + BOX + rows.length * ROW + PADDING
  const bands = [...layout.groups].map(
    ([name, [left, right]]) =>
      `<rect class="group" x="${left}" y="0" width="${right - left}" height="${height}" rx="6"/>` +
      `<text class="middle" x="${(left + right) / 2}" y="17">${escapeHtml(name)}</text>`,
  )
  const boxes = [...layout.columns].map(([name, x]) => {
    const half = halfOf(name) - 2
    const rect = (inset: number) =>
      `<rect class="state" x="${x - half + inset}" y="${top + inset}" width="${2 * (half - inset)}" height="${BOX - 2 * inset}" rx="6"/>`
    return (
      `<path class="line" d="M${x} ${top + BOX}V${height}"/>${rect(0)}${ends.has(name) ? rect(3) : ''}` +
      `<text class="middle" x="${x}" y="${top + BOX / 2 + 5}">${escapeHtml(name)}</text>`
    )
  })
  const arrows = rows.map((each, index) => arrow(each, layout, top + BOX + (index + 0.75) * ROW))
  return `<svg class="states" role="img" aria-label="Transitions between the states ${escapeHtml(diagram.states.join(', '))}; the list below has them as text." viewBox="-1 -1 ${layout.width + 2} ${height + 2}" width="${layout.width}" height="${height}">${[...bands, ...boxes, ...arrows].join('')}</svg>`
}

/** Returns a state diagram as a picture and as a list; null for other diagrams. */
export function renderStates(text: string): string | null {
  const diagram = parseStates(text)
  if (!diagram) return null
  const items = diagram.transitions.map(({ from, to, reason }) => {
    const states = [from === OUTSIDE ? 'start' : from, to === OUTSIDE ? 'end' : to]
    return `<li>${states.map(escapeHtml).join(' → ')}${reason && `: ${escapeHtml(reason)}`}</li>`
  })
  return `<div class="table" tabindex="0" role="region" aria-label="States">${draw(diagram)}</div>
<details class="transitions"><summary>Transitions as text</summary><ul>${items.join('')}</ul></details>
`
}
