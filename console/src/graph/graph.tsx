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
import { type KeyboardEvent, type MouseEvent, useEffect, useMemo, useRef } from 'react'
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

export type GraphEdge = {
  from: string
  to: string
  label?: string
  isPassed?: boolean
  mark?: Mark
  /** Place of the edge in its definition. */
  index?: number
}

/** What happens where a graph is edited. */
export type GraphEdit = {
  /** Place of the chosen edge. */
  edge: number | null
  onEdge: (index: number) => void
  onConnect: (from: string, to: string) => void
  /** A click outside of nodes and edges. */
  onNothing: () => void
}

type NodeData = { node: GraphNode; isSelected: boolean; isTabStop: boolean; isEdited: boolean }
type EdgeData = { points: { x: number; y: number }[]; x: number; y: number; edge: GraphEdge; isSelected: boolean }

/** Smallest scale with readable texts of nodes: a larger graph is moved instead. A narrow frame allows less. */
const READABLE = 0.65
const READABLE_NARROW = 0.5
const NARROW_PX = 560
/** Nodes above which only those in view are drawn. */
const DRAWN_WHOLE = 100

const edgeColor = ({ mark, isPassed }: GraphEdge, isSelected: boolean) =>
  isSelected
    ? 'var(--mantine-primary-color-filled)'
    : mark
      ? markColor(mark)
      : isPassed
        ? 'var(--mantine-color-text)'
        : 'var(--mantine-color-dimmed)'

function NodeCard({ data: { node, isSelected, isTabStop, isEdited } }: NodeProps<Node<NodeData>>) {
  const { id, type, status, detail, mark } = node
  const facts = [mark && strings.graph.marks[mark], detail].filter(Boolean).join(' · ')
  const color = mark ? markColor(mark) : status ? statusColor(status) : 'var(--mantine-color-default-border)'
  return (
    <>
      <Handle
        type="target"
        position={Position.Top}
        isConnectable={isEdited}
        className={isEdited ? 'graph-port' : 'graph-handle'}
      />
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
      <Handle
        type="source"
        position={Position.Bottom}
        isConnectable={isEdited}
        className={isEdited ? 'graph-port' : 'graph-handle'}
      />
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
  const { points, x, y, edge, isSelected } = data
  const { label, isPassed, mark } = edge
  const color = edgeColor(edge, isSelected)
  return (
    <BaseEdge
      path={pathOf(points)}
      markerEnd={markerEnd}
      label={label === undefined ? undefined : visible(label || '""')}
      labelX={x}
      labelY={y}
      labelStyle={{ fill: mark || isSelected ? color : 'var(--mantine-color-text)', fontSize: 12 }}
      labelBgStyle={{ fill: 'var(--console-ground)' }}
      labelBgPadding={[6, 3]}
      labelBgBorderRadius={4}
      style={{
        stroke: color,
        strokeWidth: isSelected ? 3 : isPassed || mark ? 2 : 1,
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
  /** Chooses a node, by keyboard or by mouse. */
  onSelect: (id: string, isByKeyboard?: boolean) => void
  height: number
  edit?: GraphEdit
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

function Drawing({ label, nodes, edges, selected, onSelect, height, layout, edit }: GraphProps & { layout: Layout }) {
  const frame = useRef<HTMLDivElement>(null)
  const byId = useMemo(() => new Map(layout.nodes.map((place, index) => [nodes[index]?.id, place])), [layout])
  const stop = nodes.some(({ id }) => id === selected) ? selected : nodes[0]?.id
  // What has not changed stays the same object, and is not drawn again.
  const keepNode = useKept<Node<NodeData>>()
  const drawnNodes = useMemo(
    () =>
      nodes.map(node => {
        const data = {
          node,
          isSelected: node.id === selected,
          isTabStop: node.id === stop,
          isEdited: edit !== undefined,
        }
        const place = byId.get(node.id) ?? { x: 0, y: 0 }
        return keepNode(node.id, JSON.stringify({ data, place }), () => ({
          id: node.id,
          type: 'card',
          position: place,
          width: NODE_WIDTH,
          height: NODE_HEIGHT,
          measured: { width: NODE_WIDTH, height: NODE_HEIGHT },
          data,
        }))
      }),
    [nodes, byId, selected, edit !== undefined],
  )
  const keepEdge = useKept<Edge<EdgeData>>()
  const drawnEdges = useMemo(
    () =>
      edges.flatMap((edge, index) => {
        const course = layout.edges[index]
        if (!course) return []
        const { from: source, to: target } = edge
        const id = String(index)
        const isSelected = edit !== undefined && edit.edge === edge.index
        return keepEdge(id, JSON.stringify({ edge, course, isSelected }), () => ({
          id,
          type: 'line',
          source,
          target,
          data: { ...course, edge, isSelected },
          markerEnd: { type: MarkerType.ArrowClosed, color: edgeColor(edge, isSelected) },
        }))
      }),
    [edges, layout, edit?.edge],
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
  /** Moves the view to a node that is not in it; returns whether it has moved. */
  const reveal = (id: string | null): boolean => {
    const place = id === null ? undefined : byId.get(id)
    if (!place || !instance.current || !frame.current) return false
    const { x, y, zoom } = instance.current.getViewport()
    const left = place.x * zoom + x
    const top = place.y * zoom + y
    const { clientWidth, clientHeight } = frame.current
    const isOutside =
      left < 0 || top < 0 || left + NODE_WIDTH * zoom > clientWidth || top + NODE_HEIGHT * zoom > clientHeight
    if (isOutside) void instance.current.setCenter(place.x + NODE_WIDTH / 2, place.y + NODE_HEIGHT / 2, { zoom })
    return isOutside
  }
  const focus = (id: string | undefined) => {
    if (!id) return
    const focusButton = () => document.getElementById(`graph-node-${id}`)?.focus({ preventScroll: true })
    focusButton()
    // A node that was not drawn is drawn with the next frame.
    if (reveal(id)) requestAnimationFrame(() => requestAnimationFrame(focusButton))
  }
  const onClick = ({ target, detail }: MouseEvent) => {
    const button = (target as Element).closest('.graph-node')
    if (button) onSelect(button.id.replace(/^graph-node-/, ''), detail === 0)
  }
  // A graph that is edited stays mounted while its shape changes.
  useEffect(() => {
    if (edit && instance.current) view(instance.current, false)
  }, [layout])
  useEffect(() => {
    if (edit) reveal(selected)
  }, [layout, selected])
  /** Arrow keys follow edges up and down, or else go to the next row, and to the adjacent node. */
  const onKeyDown = (event: KeyboardEvent) => {
    const current = (event.target as HTMLElement).id.replace(/^graph-node-/, '')
    const place = byId.get(current)
    if (!place) return
    const nextTo = (sign: 1 | -1) =>
      nodes
        .filter(({ id }) => byId.get(id)?.y === place.y && ((byId.get(id)?.x ?? 0) - place.x) * sign > 0)
        .toSorted((one, other) => sign * ((byId.get(one.id)?.x ?? 0) - (byId.get(other.id)?.x ?? 0)))[0]?.id
    const distance = (id: string) => Math.abs((byId.get(id)?.y ?? 0) - place.y)
    const nextRow = (sign: 1 | -1) =>
      nodes
        .filter(({ id }) => ((byId.get(id)?.y ?? 0) - place.y) * sign > 0)
        .toSorted((one, other) => distance(one.id) - distance(other.id))[0]?.id
    const isBelow = (id: string) => (byId.get(id)?.y ?? place.y) > place.y
    const isAbove = (id: string) => (byId.get(id)?.y ?? place.y) < place.y
    const moves: Record<string, () => string | undefined> = {
      ArrowDown: () => edges.find(({ from, to }) => from === current && isBelow(to))?.to ?? nextRow(1),
      ArrowUp: () => edges.find(({ from, to }) => to === current && isAbove(from))?.from ?? nextRow(-1),
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
        nodesConnectable={edit !== undefined}
        onConnect={({ source, target }) => edit?.onConnect(source, target)}
        onEdgeClick={(_, { data }) => data?.edge.index !== undefined && edit?.onEdge(data.edge.index)}
        onPaneClick={() => edit?.onNothing()}
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
