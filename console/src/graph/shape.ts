/** The place of each node of a graph, and the course of each edge, in pixels. */
export type Layout = {
  width: number
  height: number
  /** Top left corners, in the order of the nodes. */
  nodes: { x: number; y: number }[]
  /** In the order of the edges; null for an edge from or to a missing node. */
  edges: ({ points: { x: number; y: number }[]; x: number; y: number } | null)[]
}

/** A graph to be laid out. */
export type Shape = { ids: string[]; edges: { from: string; to: string; label?: string }[] }

export const NODE_WIDTH = 216
export const NODE_HEIGHT = 62
