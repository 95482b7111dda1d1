import { Graph, layout } from '@dagrejs/dagre'
import { type Layout, NODE_HEIGHT, NODE_WIDTH, type Shape } from './shape.ts'

/** Width of a character of an edge's label, and the height of the label. */
const CHARACTER_PX = 7
const LABEL_HEIGHT = 20

function layoutShape({ ids, edges }: Shape): Layout {
  const graph = new Graph({ multigraph: true })
  graph.setGraph({ rankdir: 'TB', nodesep: 28, edgesep: 16, ranksep: 44, marginx: 12, marginy: 12 })
  graph.setDefaultEdgeLabel(() => ({}))
  for (const id of ids) graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT })
  edges.forEach(({ from, to, label }, index) => {
    if (!graph.hasNode(from) || !graph.hasNode(to)) return
    const size = label ? { width: label.length * CHARACTER_PX + 12, height: LABEL_HEIGHT, labelpos: 'c' } : {}
    graph.setEdge(from, to, size, String(index))
  })
  layout(graph)
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number }
  return {
    width,
    height,
    nodes: ids.map(id => {
      const { x, y } = graph.node(id)
      return { x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 }
    }),
    edges: edges.map(({ from, to }, index) => {
      const edge = graph.edge(from, to, String(index)) as { points: { x: number; y: number }[]; x?: number; y?: number }
      if (!edge) return null
      const source = graph.node(from)
      const target = graph.node(to)
      // Between the ends there is a point in each gap between rows, and one in each row that the edge crosses.
      const between = edge.points.slice(1, -1)
      const middle = between[Math.floor(between.length / 2)] ?? source
      const { x = middle.x, y = middle.y } = edge
      const isOfLabel = (point: { x: number; y: number }) =>
        edge.x !== undefined && Math.abs(point.x - x) < 1 && Math.abs(point.y - y) < 1
      if (from === to) return { points: loopOf(source, x), x, y }
      // An edge to a row above leaves its source at the top.
      const side = target.y < source.y ? -1 : 1
      return {
        points: [
          { x: source.x, y: source.y + (side * NODE_HEIGHT) / 2 },
          ...between.filter((point, index) => index % 2 === 1 || isOfLabel(point)),
          { x: target.x, y: target.y - (side * NODE_HEIGHT) / 2 },
        ],
        x,
        y,
      }
    }),
  }
}

/** The course of an edge from a node to itself, at the right of it. */
function loopOf({ x, y }: { x: number; y: number }, labelX: number): { x: number; y: number }[] {
  const right = x + NODE_WIDTH / 2
  return [
    { x: right, y: y - NODE_HEIGHT / 4 },
    { x: Math.max(labelX, right + 16), y },
    { x: right, y: y + NODE_HEIGHT / 4 },
  ]
}

self.onmessage = ({ data: { number, shape } }) => {
  try {
    self.postMessage({ number, layout: layoutShape(shape) })
  } catch (error) {
    self.postMessage({ number, error: String(error) })
  }
}
