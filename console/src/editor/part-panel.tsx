import { ActionIcon, Button, Group, Select, Stack, Text, Title } from '@mantine/core'
import { IconArrowRight, IconPencil, IconTrash } from '@tabler/icons-react'
import type { Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import { type Findings, placeOf } from '#graph/definition.ts'
import { NodeTypeIcon } from '#graph/node-type.tsx'
import * as strings from '#strings.ts'
import { NameField, type Unfinished } from './expression.tsx'
import { entriesOf, type GraphKind, keysOf, nodeOfKey, sourcesOf } from './kind.ts'
import { PartForm } from './part-form.tsx'

const texts = strings.editor

/** Id of the input with the name of the node or edge. */
export const KEY_INPUT = 'part-key'

/** What the panels of a node and an edge have in common. */
export type PanelProps = {
  kind: GraphKind
  definition: Values
  findings: Findings
  unfinished: Unfinished
  onUnfinished: (path: string, text: unknown) => void
}

/** The text of an edge: its label, or its ends. */
export const edgeText = (edge: Values): string => {
  const ends = `${sourcesOf(edge).join(', ')} → ${edge.to}`
  const label = edge.name ?? edge.condition
  return visible(typeof label === 'string' && label !== '' ? `${label}: ${ends}` : ends)
}

/** Returns the findings at a place of a list, by the path within the entry. */
function findingsAt({ problems, warnings }: Findings, list: string, place: number) {
  const found = [...problems, ...warnings].filter(each => placeOf(each, list) === place)
  const prefix = `${list}[${place}].`
  const pathOf = (path: string) => (path.startsWith(prefix) ? path.slice(prefix.length) : '')
  return {
    of: (field: string) =>
      found.find(({ path }) => {
        const own = pathOf(path)
        return own === field || own.startsWith(`${field}.`) || own.startsWith(`${field}[`)
      })?.message,
    /** Findings that belong to no shown field. */
    others: (fields: string[]) =>
      found.filter(({ path }) => {
        const own = pathOf(path)
        return !fields.some(name => own === name || own.startsWith(`${name}.`) || own.startsWith(`${name}[`))
      }),
  }
}

function Others({ found }: { found: Findings['problems'] }) {
  return found.map(({ path, message }) => (
    <Text size="sm" c="var(--mantine-color-error)" key={path + message} role="alert">
      <span className="mono">{visible(path)}</span> {visible(message)}
    </Text>
  ))
}

/** The place of a node in its list. */
const nodePlace = (kind: GraphKind, definition: Values, name: string): number => {
  const list = definition[kind.lists.nodes]
  return Array.isArray(list) ? list.findIndex(node => node?.[kind.key] === name) : -1
}

/** The form of a node, with its edges. */
export function NodePanel({
  name,
  onRename,
  onChange,
  onRemove,
  onConnect,
  onEdge,
  onRemoveEdge,
  ...props
}: PanelProps & {
  name: string
  onRename: (name: string) => void
  onChange: (node: Values, field: string) => void
  onRemove: () => void
  onConnect: (to: string) => void
  onEdge: (index: number) => void
  onRemoveEdge: (index: number) => void
}) {
  const { kind, definition, findings } = props
  const node = nodeOfKey(kind, definition, name)
  if (!node) return null
  const fields = kind.nodeFields(definition, node)
  const found = findingsAt(findings, kind.lists.nodes, nodePlace(kind, definition, name))
  const { type } = kind.draw({ [kind.lists.nodes]: [node] }).nodes[0] ?? { type: '' }
  const names = keysOf(kind, definition)
  return (
    <Stack gap="md">
      <Group gap="xs" wrap="nowrap" justify="space-between">
        <Group gap="xs" wrap="nowrap" miw={0}>
          <NodeTypeIcon type={type} />
          <Title order={2} size="h5">
            {kind.palette.find(entry => entry.type === type)?.name ?? visible(type)}
          </Title>
        </Group>
        <Button size="xs" variant="default" leftSection={<IconTrash size={14} />} onClick={onRemove}>
          {strings.remove}
        </Button>
      </Group>
      <Others found={found.others([kind.key, ...fields.map(each => each.name)])} />
      <NameField
        id={KEY_INPUT}
        label={texts.key[kind.key]}
        value={name}
        problemOf={next => (names.includes(next) ? texts.keyUsed : kind.keyProblem(next))}
        onChange={onRename}
      />
      <PartForm
        key={name}
        {...props}
        part={node}
        path={`node ${name}`}
        fields={fields}
        errorOf={found.of}
        onChange={onChange}
        available={field => kind.available(definition, node, field)}
      />
      <NodeEdges {...{ kind, definition, name, names, onConnect, onEdge, onRemoveEdge }} />
    </Stack>
  )
}

/** The edges of a node, and a form that adds one. */
function NodeEdges({
  kind,
  definition,
  name,
  names,
  onConnect,
  onEdge,
  onRemoveEdge,
}: {
  kind: GraphKind
  definition: Values
  name: string
  names: string[]
  onConnect: (to: string) => void
  onEdge: (index: number) => void
  onRemoveEdge: (index: number) => void
}) {
  const list = definition[kind.lists.edges]
  const edges = (Array.isArray(list) ? list : [])
    .map((edge, index) => ({ edge, index }))
    .filter(({ edge }) => entriesOf({ edge: [edge] }, 'edge').some(each => sourcesOf(each).includes(name)))
  return (
    <Stack gap="xs">
      <Text fw={600} size="sm">
        {texts.outgoing}
      </Text>
      {edges.length === 0 && (
        <Text size="sm" c="dimmed">
          {texts.noEdges}
        </Text>
      )}
      {edges.map(({ edge, index }) => (
        <Group key={index} gap="xs" wrap="nowrap">
          <IconArrowRight size={14} aria-hidden style={{ flex: 'none' }} />
          <Text size="sm" flex={1} miw={0} truncate>
            {edgeText({ ...edge, from: [] }).replace(/ → |→ /, '')}
          </Text>
          <ActionIcon variant="subtle" aria-label={texts.editEdge(edgeText(edge))} onClick={() => onEdge(index)}>
            <IconPencil size={16} />
          </ActionIcon>
          <ActionIcon
            variant="subtle"
            color="gray"
            aria-label={texts.remove(edgeText(edge))}
            onClick={() => onRemoveEdge(index)}
          >
            <IconTrash size={16} />
          </ActionIcon>
        </Group>
      ))}
      <Select
        label={texts.target}
        placeholder={texts.targetHelp}
        data={names.map(value => ({ value, label: visible(value) }))}
        value={null}
        onChange={to => to !== null && onConnect(to)}
        searchable
        limit={100}
      />
    </Stack>
  )
}

/** The form of an edge. */
export function EdgePanel({
  index,
  onRename,
  onChange,
  onRemove,
  onNode,
  ...props
}: PanelProps & {
  index: number
  onRename: (before: string, after: string) => void
  onChange: (edge: Values, field: string) => void
  onRemove: () => void
  onNode: (name: string) => void
}) {
  const { kind, definition, findings } = props
  const list = definition[kind.lists.edges]
  const edge = (Array.isArray(list) ? list[index] : undefined) as Values | undefined
  if (!edge) return null
  const fields = kind.edgeFields(definition, edge)
  const found = findingsAt(findings, kind.lists.edges, index)
  const name = kind.edgeKey && String(edge[kind.edgeKey] ?? '')
  const names = entriesOf(definition, kind.lists.edges).map(each => String(each[kind.edgeKey ?? '']))
  return (
    <Stack gap="md">
      <Group gap="xs" wrap="nowrap" justify="space-between" align="flex-start">
        <Title order={2} size="h5" className="wrap">
          {edgeText({ ...edge, name: null, condition: null })}
        </Title>
        <Button size="xs" variant="default" leftSection={<IconTrash size={14} />} onClick={onRemove}>
          {strings.remove}
        </Button>
      </Group>
      <Others found={found.others([kind.edgeKey ?? '', ...fields.map(each => each.name)])} />
      {name !== null && (
        <NameField
          id={KEY_INPUT}
          label={texts.edgeName}
          value={name}
          problemOf={next => (names.includes(next) ? texts.keyUsed : kind.keyProblem(next))}
          onChange={next => onRename(name, next)}
        />
      )}
      <PartForm
        key={index}
        {...props}
        part={edge}
        path={`edge ${index}`}
        fields={fields}
        errorOf={found.of}
        onChange={onChange}
        available={field => kind.available(definition, edge, field)}
      />
      <Group gap="xs">
        {[...new Set([...sourcesOf(edge), String(edge.to)])].map(each => (
          <Button key={each} size="xs" variant="default" onClick={() => onNode(each)}>
            {strings.orchestrations.showNode(visible(each))}
          </Button>
        ))}
      </Group>
    </Stack>
  )
}
