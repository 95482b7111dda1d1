import '@xyflow/react/dist/base.css'
import { ActionIcon, Box, Group, Text, UnstyledButton, VisuallyHidden } from '@mantine/core'
import { IconMaximize, IconMinus, IconPlus } from '@tabler/icons-react'
import {
  BaseEdge,
  type Edge,
  type EdgeProps,
  Handle,
  MarkerType,
  type Node,
  type NodeProps,
  Panel,
  Position,
  ReactFlow,
  type ReactFlowInstance,
  ReactFlowProvider,
  useReactFlow,
} from '@xyflow/react'
import { type KeyboardEvent, type MouseEvent, useMemo, useRef } from 'react'
import { StatusIcon, statusColor } from '#components/status.tsx'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'
import { type Mark, MarkIcon, markColor } from './marks.tsx'
import { NodeTypeIcon } from './node-type.tsx'
import { type Layout, NODE_HEIGHT, NODE_WIDTH } from './shape.ts'

export type GraphNode = {
  id: string
  type: string
  /** The state in a run. */
  status?: string
  /** Further facts in few words. */
  detail?: string
  mark?: Mark
}

export type GraphEdge = { from: string; to: string; label?: string; isPassed?: boolean; mark?: Mark }

type NodeData = { node: GraphNode; isSelected: boolean; isTabStop: boolean }
type EdgeData = { points: { x: number; y: number }[]; x: number; y: number; edge: GraphEdge }

/** Smallest scale with readable texts of nodes: a larger graph is moved instead. A narrow frame allows less. */
const READABLE = 0.65
const READABLE_NARROW = 0.5
const NARROW_PX = 560
/** Nodes above which only those in view are drawn. */
const DRAWN_WHOLE = 100

const edgeColor = ({ mark, isPassed }: GraphEdge) =>
  mark ? markColor(mark) : isPassed ? 'var(--mantine-color-text)' : 'var(--mantine-color-dimmed)'

function NodeCard({ data: { node, isSelected, isTabStop } }: NodeProps<Node<NodeData>>) {
  const { id, type, status, detail, mark } = node
  const facts = [mark && strings.graph.marks[mark], detail].filter(Boolean).join(' · ')
  const color = mark ? markColor(mark) : status ? statusColor(status) : 'var(--mantine-color-default-border)'
  return (
    <>
      <Handle type="target" position={Position.Top} isConnectable={false} className="graph-handle" />
      <UnstyledButton
        id={`graph-node-${id}`}
        className="nopan graph-node"
        tabIndex={isTabStop ? 0 : -1}
        aria-pressed={isSelected}
        w={NODE_WIDTH}
        h={NODE_HEIGHT}
        data-status={status}
        data-mark={mark}
        style={{
          borderColor: isSelected ? 'var(--mantine-primary-color-filled)' : undefined,
          borderInlineStartColor: color,
          opacity: status === 'skipped' ? 0.75 : undefined,
          borderStyle: mark === 'removed' ? 'dashed' : undefined,
        }}
      >
        <Group gap="sm" wrap="nowrap" h="100%" px="sm">
          <NodeTypeIcon type={type} />
          <Box miw={0} flex={1}>
            <Text size="sm" fw={600} truncate>
              {visible(id)}
            </Text>
            <Group gap={4} wrap="nowrap">
              {status && <StatusIcon status={status} size={14} />}
              {mark && <MarkIcon mark={mark} size={14} />}
              <Text size="xs" c={mark && !status ? undefined : 'dimmed'} truncate>
                {visible(facts || type)}
              </Text>
              {facts && <VisuallyHidden>{type}</VisuallyHidden>}
            </Group>
          </Box>
        </Group>
      </UnstyledButton>
      <Handle type="source" position={Position.Bottom} isConnectable={false} className="graph-handle" />
    </>
  )
}

/** The course of an edge as a path: from point to point, and upright at each. */
const pathOf = (points: EdgeData['points']): string =>
  points
    .map(({ x, y }, index) => {
      const before = points[index - 1]
      const middle = before && (before.y + y) / 2
      return before ? `C ${before.x} ${middle} ${x} ${middle} ${x} ${y}` : `M ${x} ${y}`
    })
    .join(' ')

function EdgeLine({ data, markerEnd }: EdgeProps<Edge<EdgeData>>) {
  if (!data) return null
  const { points, x, y, edge } = data
  const { label, isPassed, mark } = edge
  const color = edgeColor(edge)
  return (
    <BaseEdge
      path={pathOf(points)}
      markerEnd={markerEnd}
      label={label === undefined ? undefined : visible(label || '""')}
      labelX={x}
      labelY={y}
      labelStyle={{ fill: mark ? color : 'var(--mantine-color-text)', fontSize: 12 }}
      labelBgStyle={{ fill: 'var(--console-ground)' }}
      labelBgPadding={[6, 3]}
      labelBgBorderRadius={4}
      style={{
        stroke: color,
        strokeWidth: isPassed || mark ? 2 : 1,
        strokeDasharray: mark === 'removed' ? '6 4' : undefined,
      }}
    />
  )
}

const nodeTypes = { card: NodeCard }
const edgeTypes = { line: EdgeLine }

function Controls({ onWhole }: { onWhole: () => void }) {
  const { zoomIn, zoomOut } = useReactFlow()
  return (
    <Panel position="bottom-right">
      <ActionIcon.Group>
        <ActionIcon variant="default" aria-label={strings.graph.zoomOut} onClick={() => void zoomOut()}>
          <IconMinus size={16} />
        </ActionIcon>
        <ActionIcon variant="default" aria-label={strings.graph.whole} onClick={onWhole}>
          <IconMaximize size={16} />
        </ActionIcon>
        <ActionIcon variant="default" aria-label={strings.graph.zoomIn} onClick={() => void zoomIn()}>
          <IconPlus size={16} />
        </ActionIcon>
      </ActionIcon.Group>
    </Panel>
  )
}

type GraphProps = {
  label: string
  nodes: GraphNode[]
  edges: GraphEdge[]
  selected: string | null
  onSelect: (id: string) => void
  height: number
}

/** Returns a function that makes an object only where its facts have changed since the last time. */
function useKept<T>() {
  const kept = useRef(new Map<string, { facts: string; made: T }>())
  return (id: string, facts: string, make: () => T): T => {
    const before = kept.current.get(id)
    if (before?.facts === facts) return before.made
    const made = make()
    kept.current.set(id, { facts, made })
    return made
  }
}

function Drawing({ label, nodes, edges, selected, onSelect, height, layout }: GraphProps & { layout: Layout }) {
  const frame = useRef<HTMLDivElement>(null)
  const byId = useMemo(() => new Map(layout.nodes.map((place, index) => [nodes[index]?.id, place])), [layout])
  const first = nodes[0]?.id
  // What has not changed stays the same object, and is not drawn again.
  const keepNode = useKept<Node<NodeData>>()
  const drawnNodes = useMemo(
    () =>
      nodes.map(node => {
        const data = { node, isSelected: node.id === selected, isTabStop: node.id === (selected ?? first) }
        return keepNode(node.id, JSON.stringify(data), () => ({
          id: node.id,
          type: 'card',
          position: byId.get(node.id) ?? { x: 0, y: 0 },
          width: NODE_WIDTH,
          height: NODE_HEIGHT,
          measured: { width: NODE_WIDTH, height: NODE_HEIGHT },
          data,
        }))
      }),
    [nodes, byId, selected],
  )
  const keepEdge = useKept<Edge<EdgeData>>()
  const drawnEdges = useMemo(
    () =>
      edges.flatMap((edge, index) => {
        const course = layout.edges[index]
        if (!course) return []
        const { from: source, to: target } = edge
        const id = String(index)
        return keepEdge(id, JSON.stringify(edge), () => ({
          id,
          type: 'line',
          source,
          target,
          data: { ...course, edge },
          markerEnd: { type: MarkerType.ArrowClosed, color: edgeColor(edge) },
        }))
      }),
    [edges, layout],
  )
  const view = (flow: ReactFlowInstance<Node<NodeData>, Edge<EdgeData>>, isWhole: boolean) => {
    if (!frame.current) return
    const { clientWidth: width, clientHeight: height } = frame.current
    const fitting = Math.min(width / layout.width, height / layout.height, 1)
    const zoom = isWhole ? fitting : Math.max(fitting, width < NARROW_PX ? READABLE_NARROW : READABLE)
    const top = Math.max((height - layout.height * zoom) / 2, 0)
    // A graph that is wider than its frame begins with its first node in the middle.
    const middle = layout.width * zoom > width ? (layout.nodes[0]?.x ?? 0) + NODE_WIDTH / 2 : layout.width / 2
    void flow.setViewport({ x: width / 2 - middle * zoom, y: top, zoom })
  }
  const instance = useRef<ReactFlowInstance<Node<NodeData>, Edge<EdgeData>> | null>(null)
  const focus = (id: string | undefined) => {
    if (!id) return
    const place = byId.get(id)
    const focusButton = () => document.getElementById(`graph-node-${id}`)?.focus({ preventScroll: true })
    focusButton()
    if (!place || !instance.current || !frame.current) return
    const { x, y, zoom } = instance.current.getViewport()
    const left = place.x * zoom + x
    const top = place.y * zoom + y
    const { clientWidth, clientHeight } = frame.current
    const isOutside =
      left < 0 || top < 0 || left + NODE_WIDTH * zoom > clientWidth || top + NODE_HEIGHT * zoom > clientHeight
    if (!isOutside) return
    void instance.current.setCenter(place.x + NODE_WIDTH / 2, place.y + NODE_HEIGHT / 2, { zoom })
    // A node that was not drawn is drawn with the next frame.
    requestAnimationFrame(() => requestAnimationFrame(focusButton))
  }
  const onClick = ({ target }: MouseEvent) => {
    const button = (target as Element).closest('.graph-node')
    if (button) onSelect(button.id.replace(/^graph-node-/, ''))
  }
  /** Arrow keys follow edges up and down, and go to the adjacent node. */
  const onKeyDown = (event: KeyboardEvent) => {
    const current = (event.target as HTMLElement).id.replace(/^graph-node-/, '')
    const place = byId.get(current)
    if (!place) return
    const nextTo = (sign: 1 | -1) =>
      nodes
        .filter(({ id }) => byId.get(id)?.y === place.y && ((byId.get(id)?.x ?? 0) - place.x) * sign > 0)
        .toSorted((one, other) => sign * ((byId.get(one.id)?.x ?? 0) - (byId.get(other.id)?.x ?? 0)))[0]?.id
    const moves: Record<string, () => string | undefined> = {
      ArrowDown: () => edges.find(({ from, to }) => from === current && byId.has(to))?.to,
      ArrowUp: () => edges.find(({ from, to }) => to === current && byId.has(from))?.from,
      ArrowRight: () => nextTo(1),
      ArrowLeft: () => nextTo(-1),
      Home: () => nodes[0]?.id,
      End: () => nodes[nodes.length - 1]?.id,
    }
    const move = moves[event.key]
    if (!move) return
    event.preventDefault()
    focus(move())
  }
  return (
    <Box
      ref={frame}
      h={height}
      role="group"
      aria-label={label}
      onKeyDown={onKeyDown}
      onClick={onClick}
      className="graph"
    >
      <ReactFlow
        nodes={drawnNodes}
        edges={drawnEdges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        elementsSelectable={false}
        disableKeyboardA11y
        zoomOnScroll={false}
        zoomOnDoubleClick={false}
        preventScrolling={false}
        minZoom={0.05}
        maxZoom={1.5}
        onlyRenderVisibleElements={nodes.length > DRAWN_WHOLE}
        proOptions={{ hideAttribution: true }}
        onInit={flow => {
          instance.current = flow
          view(flow, false)
        }}
      >
        <Controls onWhole={() => instance.current && view(instance.current, true)} />
      </ReactFlow>
    </Box>
  )
}

/** A directed graph, drawn from top to bottom. A node is chosen by click, or by arrow keys and Enter. */
export default function Graph({ shapeKey, ...props }: GraphProps & { layout: Layout; shapeKey: string }) {
  // Another shape is mounted again: its initial view depends on its size.
  return (
    <ReactFlowProvider key={shapeKey}>
      <Drawing {...props} />
    </ReactFlowProvider>
  )
}
