import './editor.css'
import { ActionIcon, Alert, Box, Button, Group, Stack, Tabs, Text } from '@mantine/core'
import { useDebouncedValue, useMediaQuery } from '@mantine/hooks'
import { IconArrowBackUp, IconArrowForwardUp, IconHierarchy } from '@tabler/icons-react'
import { type DragEvent, type KeyboardEvent, useEffect, useMemo, useRef, useState } from 'react'
import type { Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { TextButton, visible } from '#components/text.tsx'
import type { Findings } from '#graph/definition.ts'
import { FindingList } from '#graph/finding-list.tsx'
import { GraphPanel } from '#graph/graph-panel.tsx'
import * as strings from '#strings.ts'
import type { useDefinitionText } from './definition-text.ts'
import type { Unfinished } from './expression.tsx'
import { JsonPanel, showInText } from './json-panel.tsx'
import {
  addEdge,
  addNode,
  entriesOf,
  type GraphKind,
  keysOf,
  type PaletteEntry,
  type Records,
  removeNode,
  renameNode,
  setEdge,
  setNode,
} from './kind.ts'
import { DRAGGED, Palette } from './palette.tsx'
import { EdgePanel, edgeText, KEY_INPUT, NodePanel } from './part-panel.tsx'

const texts = strings.editor

/** Pause after which a change is drawn. */
const DRAWN_MS = 100
const HEIGHT = 600

type Selection = { node: string } | { edge: number } | null
type Tab = 'add' | 'part' | 'json'

type EditorProps = {
  kind: GraphKind
  /** Name of the graph for screen readers. */
  label: string
  text: string
  editor: ReturnType<typeof useDefinitionText>
  findings: Findings
  records: Records
  unfinished: Unfinished
  onUnfinished: (unfinished: Unfinished) => void
}

/** State and commands of an editor. */
function useCommands({ kind, editor, text, unfinished, onUnfinished }: EditorProps) {
  const { definition, isValid, edit } = editor
  const [selection, setSelection] = useState<Selection>(null)
  const [tab, setTab] = useState<Tab>('add')
  const [connecting, setConnecting] = useState<string | null>(null)
  const [notice, setNotice] = useState('')
  /** Holds the focus after a node or edge with the focus was removed. */
  const canvas = useRef<HTMLDivElement>(null)
  /** Whether the focus follows the selection. */
  const isFocused = useRef(false)
  const node = selection && 'node' in selection ? selection.node : null
  const edge = selection && 'edge' in selection ? selection.edge : null
  useEffect(() => {
    if (!isFocused.current) return
    isFocused.current = false
    const input = document.getElementById(KEY_INPUT) ?? document.querySelector<HTMLElement>('#part-panel input')
    input?.focus()
    input?.scrollIntoView({ block: 'nearest' })
  })
  const select = (next: Selection, isByKeyboard = false) => {
    setSelection(next)
    if (next === null) setTab(before => (before === 'part' ? 'add' : before))
    else if (tab !== 'json' || isByKeyboard) setTab('part')
    isFocused.current = isByKeyboard
  }
  const forget = (...prefixes: string[]) => {
    const kept = Object.entries(unfinished).filter(([path]) => !prefixes.some(prefix => path.startsWith(prefix)))
    onUnfinished(Object.fromEntries(kept))
  }
  const connect = (from: string, to: string, isByKeyboard = false) => {
    setConnecting(null)
    if (!isValid) return
    const added = kind.connect(definition, from, to)
    if (typeof added === 'string') return setNotice(added)
    edit(addEdge(kind, definition, added))
    const list = definition[kind.lists.edges]
    select({ edge: Array.isArray(list) ? list.length : 0 }, isByKeyboard)
    setNotice(texts.drawn(visible(from), visible(to)))
  }
  return {
    canvas,
    node,
    edge,
    tab,
    setTab,
    connecting,
    setConnecting,
    notice,
    select,
    connect,
    choose(name: string, isByKeyboard = false) {
      if (connecting !== null) return connect(connecting, name, isByKeyboard)
      select({ node: name }, isByKeyboard)
      if (tab === 'json' && !isByKeyboard) showInText(text, kind.key, name)
    },
    add(entry: PaletteEntry, after: string | null, isByKeyboard: boolean) {
      if (!isValid) return
      const added = addNode(kind, definition, entry, after)
      edit(added.definition)
      setNotice(texts.added(visible(added.key)))
      select({ node: added.key }, isByKeyboard)
    },
    remove(name: string) {
      if (!isValid) return
      edit(removeNode(kind, definition, name))
      // Its edges are removed with it: places of later edges change.
      forget(`node ${name}.`, 'edge ')
      setNotice(texts.removed(visible(name)))
      select(null)
      canvas.current?.focus()
    },
    removeEdge(index: number) {
      if (!isValid) return
      edit(setEdge(kind, definition, index, null))
      // Places of later edges change.
      forget('edge ')
      if (edge === null) return
      select(null)
      canvas.current?.focus()
    },
    rename(before: string, after: string) {
      if (!isValid) return
      edit(renameNode(kind, definition, before, after))
      const moved = Object.entries(unfinished).map(([path, text]) => [
        path.startsWith(`node ${before}.`) ? `node ${after}.${path.slice(before.length + 6)}` : path,
        text,
      ])
      onUnfinished(Object.fromEntries(moved))
      setSelection({ node: after })
    },
    step(go: (() => void) | null) {
      go?.()
      onUnfinished({})
      setConnecting(null)
    },
  }
}

type Commands = ReturnType<typeof useCommands>

/** Undo, redo, and what the editor says. */
function Toolbar({ editor, findings, commands }: Pick<EditorProps, 'editor' | 'findings'> & { commands: Commands }) {
  const { connecting, notice, step } = commands
  return (
    <Group gap="sm" mih={36} wrap="nowrap" align="center">
      <ActionIcon.Group>
        {(['undo', 'redo'] as const).map(name => (
          <ActionIcon
            key={name}
            variant="default"
            size="lg"
            aria-label={texts[name]}
            disabled={!editor[name]}
            onClick={() => step(editor[name])}
          >
            {name === 'undo' ? <IconArrowBackUp size={18} /> : <IconArrowForwardUp size={18} />}
          </ActionIcon>
        ))}
      </ActionIcon.Group>
      <Box role="status" miw={0}>
        <Text size="sm" fw={600}>
          {texts.found(findings.problems.length, findings.warnings.length)}
        </Text>
        {(connecting !== null || notice !== '') && (
          <Text size="sm" c="dimmed">
            {connecting === null ? notice : texts.connecting(visible(connecting))}
          </Text>
        )}
      </Box>
    </Group>
  )
}

/** Returns the node at which an event happened, in the drawing or in the list. */
function nodeAt(target: EventTarget, names: string[]): string | undefined {
  const element = target as HTMLElement
  const drawn = element.closest('.graph-node')?.id.replace(/^graph-node-/, '')
  const row = element.closest('[role=treeitem]')?.getAttribute('data-row')
  return drawn ?? (row == null ? undefined : names[Number(row)])
}

/** The graph of an editor: its keys and drops. */
function Canvas({ kind, label, editor, findings, commands }: EditorProps & { commands: Commands }) {
  const { canvas, node, edge, connecting, setConnecting, select, choose, connect, add, remove } = commands
  const [drawn] = useDebouncedValue(editor.definition, DRAWN_MS)
  const graph = useMemo(() => kind.draw(drawn, findings), [kind, drawn, findings])
  const names = graph.nodes.map(({ id }) => id)
  const onKeyDown = (event: KeyboardEvent) => {
    const at = nodeAt(event.target, names)
    if (event.key === 'Escape' && connecting !== null) setConnecting(null)
    else if (event.target === canvas.current && event.key === 'ArrowDown')
      document.getElementById(`graph-node-${names[0]}`)?.focus()
    else if (at === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    else if (event.key === 'c') setConnecting(at)
    else if (event.key === 'Delete' || event.key === 'Backspace') remove(at)
    else return
    event.preventDefault()
  }
  const onDrop = (event: DragEvent) => {
    const type = event.dataTransfer.getData(DRAGGED)
    const entry = kind.palette.find(each => each.type === type)
    if (!entry) return
    event.preventDefault()
    add(entry, nodeAt(event.target, names) ?? null, false)
  }
  const isEmpty = entriesOf(editor.definition, kind.lists.nodes).length === 0
  return (
    <Box
      ref={canvas}
      tabIndex={-1}
      className="graph-edited"
      data-connecting={connecting ?? undefined}
      onKeyDown={onKeyDown}
      onDrop={onDrop}
      onDragOver={event => event.dataTransfer.types.includes(DRAGGED) && event.preventDefault()}
    >
      {isEmpty ? (
        <Notice
          icon={<IconHierarchy />}
          title={texts.emptyTitle}
          action={
            <Button variant="default" disabled={!editor.isValid} onClick={() => editor.edit(kind.example)}>
              {texts.example}
            </Button>
          }
        >
          {texts.emptyText}
        </Notice>
      ) : (
        <GraphPanel
          label={label}
          graph={graph}
          selected={node}
          onSelect={choose}
          isBare
          height={HEIGHT}
          edit={{
            edge,
            onEdge: index => select({ edge: index }),
            onConnect: connect,
            onNothing: () => select(null),
          }}
        />
      )}
    </Box>
  )
}

/** The palette, the form of the chosen node or edge, or the definition as JSON. */
function SidePanel(props: EditorProps & { commands: Commands }) {
  const { kind, text, editor, records, unfinished, onUnfinished, findings, commands } = props
  const { definition, isValid, write, edit } = editor
  const { node, edge, tab, setTab, select } = commands
  const names = keysOf(kind, definition)
  const [after, setAfter] = useState<string | null>(null)
  useEffect(() => setAfter(node), [node])
  const panel = {
    kind,
    definition,
    findings,
    unfinished,
    onUnfinished: (path: string, text: unknown) => {
      const others = Object.entries(unfinished).filter(([each]) => each !== path && !each.startsWith(`${path}[`))
      onUnfinished(Object.fromEntries(text === undefined ? others : [...others, [path, text]]))
    },
  }
  const onKeyDown = ({ key, target }: KeyboardEvent) => {
    const isList = (target as Element).getAttribute('aria-expanded') === 'true'
    if (key !== 'Escape' || node === null || isList) return
    const row = document.querySelector<HTMLElement>('.graph-edited [role=treeitem][aria-selected=true]')
    ;(document.getElementById(`graph-node-${node}`) ?? row)?.focus()
  }
  return (
    <Tabs value={tab} onChange={value => setTab(value as Tab)} keepMounted={false} onKeyDown={onKeyDown}>
      <Tabs.List grow mb="md" aria-label={texts.panel}>
        <Tabs.Tab value="add">{texts.palette}</Tabs.Tab>
        <Tabs.Tab value="part">{texts.part}</Tabs.Tab>
        <Tabs.Tab value="json">{texts.json}</Tabs.Tab>
      </Tabs.List>
      <Tabs.Panel value="add">
        <Palette
          entries={kind.palette}
          nodes={names}
          after={after !== null && names.includes(after) ? after : null}
          onAfter={setAfter}
          onAdd={entry => commands.add(entry, after, true)}
        />
      </Tabs.Panel>
      <Tabs.Panel value="part">
        <fieldset id="part-panel" disabled={!isValid} className="plain">
          {node !== null && names.includes(node) ? (
            <NodePanel
              {...panel}
              name={node}
              onRename={next => commands.rename(node, next)}
              onChange={(next, field) => {
                const changed = setNode(kind, definition, node, next)
                edit(kind.settled?.(changed, node) ?? changed, `${node} ${field}`)
              }}
              onRemove={() => commands.remove(node)}
              onConnect={to => commands.connect(node, to, true)}
              onEdge={index => select({ edge: index }, true)}
              onRemoveEdge={commands.removeEdge}
            />
          ) : edge !== null ? (
            <EdgePanel
              {...panel}
              index={edge}
              onRename={(before, next) => {
                const entries = definition[kind.lists.edges] as Values[]
                const named = setEdge(kind, definition, edge, { ...entries[edge], name: next })
                edit(kind.renamedEdge?.(named, before, next) ?? named)
              }}
              onChange={(next, field) => edit(setEdge(kind, definition, edge, next), `${edge} ${field}`)}
              onRemove={() => commands.removeEdge(edge)}
              onNode={name => select({ node: name }, true)}
            />
          ) : (
            <Text c="dimmed">{texts.nothingChosen}</Text>
          )}
        </fieldset>
      </Tabs.Panel>
      <Tabs.Panel value="json">
        <JsonPanel
          kind={kind}
          definition={definition}
          records={records}
          value={text}
          onChange={next => {
            write(next, 'text')
            onUnfinished({})
          }}
          error={isValid ? null : strings.form.notObject}
          rows={24}
        />
      </Tabs.Panel>
    </Tabs>
  )
}

/**
 * An editor of a graph: the drawing or the list of its nodes, and next to it the palette, the form of a node or an edge, and
 * the definition as JSON. All of them change the same text.
 */
export function GraphEditor(props: EditorProps) {
  const { kind, editor, findings, unfinished } = props
  const commands = useCommands(props)
  const isNarrow = useMediaQuery('(max-width: 61.99em)', undefined, { getInitialValueInEffect: false })
  const onKeyDown = (event: KeyboardEvent) => {
    // Enter in a field is no reason to save the whole.
    if (event.key === 'Enter' && event.target instanceof HTMLInputElement) event.preventDefault()
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== 'z') return
    event.preventDefault()
    commands.step(event.shiftKey ? editor.redo : editor.undo)
  }
  const count = Object.keys(unfinished).length
  return (
    <Stack gap="sm" onKeyDown={onKeyDown}>
      <Toolbar editor={editor} findings={findings} commands={commands} />
      {!editor.isValid && (
        <Alert color="red" role="alert" p="sm">
          <Text size="sm">{texts.invalidText}</Text>
          <TextButton onClick={editor.restore}>{texts.backToValid}</TextButton>
        </Alert>
      )}
      {count > 0 && (
        <Alert color="red" role="alert" p="sm">
          {texts.unfinished(count)}
        </Alert>
      )}
      <Group gap="lg" align="flex-start" wrap={isNarrow ? 'wrap' : 'nowrap'}>
        <Stack gap="sm" flex={1} miw={isNarrow ? '100%' : 0} pos={isNarrow ? undefined : 'sticky'} top={72}>
          <Canvas {...props} commands={commands} />
          <Text size="xs" c="dimmed">
            {texts.keys}{' '}
            <Text span inherit visibleFrom="sm">
              {texts.ports}
            </Text>
          </Text>
          <FindingList
            findings={findings}
            lists={kind.lists}
            nameOf={(list, place) => {
              const entries = editor.definition[list]
              const entry = (Array.isArray(entries) ? entries[place] : undefined) as Values | undefined
              const name = list === kind.lists.nodes ? entry?.[kind.key] : entry && edgeText(entry)
              return typeof name === 'string' ? name : undefined
            }}
            onSelect={(list, place, name) =>
              commands.select(list === kind.lists.nodes ? { node: name } : { edge: place }, true)
            }
          />
        </Stack>
        <Box w={isNarrow ? '100%' : 380} style={{ flex: 'none' }}>
          <SidePanel {...props} commands={commands} />
        </Box>
      </Group>
    </Stack>
  )
}
