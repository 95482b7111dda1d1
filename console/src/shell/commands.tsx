import { Combobox, Group, Modal, Text, useCombobox } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import {
  getDecision,
  getMemory,
  getPlaybookExecution,
  getTriggerFiring,
  getWebhookDelivery,
  listActors,
  listAgents,
  listSessions,
} from '@muster/client/operations'
import { IconFolder, IconHash, IconMessages, IconRobot, IconUserCircle, type TablerIcon } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'
import { api } from '#api.ts'
import { RECORD_VIEWS } from '#components/record-views.ts'
import { visible } from '#components/text.tsx'
import { type Operation, usePermissions, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'
import { maySee, NAVIGATION } from './navigation.ts'

const texts = strings.palette

/** Entries of a kind that a search returns. */
const FOUND = 5
const TYPING_MS = 200
/** Length of the part of an ID after its prefix. */
const ID_LENGTH = 26

type Options = { signal: AbortSignal }

/** A view of a record below the view of another record, which a read of the record names. */
type NestedView = {
  /** Path of the view of the other record. */
  path: string
  operation: Operation
  /** Reads the rest of the address. */
  below: (id: string, options: Options) => Promise<string>
}

/** Nested views, by the prefix of the IDs of their records. */
const NESTED: Record<string, NestedView> = {
  dec: {
    path: 'deciders',
    operation: getDecision,
    below: async (id, options) =>
      `${(await getDecision(api, { decision_id: id }, options)).decider_id ?? 'none'}/decisions/${id}`,
  },
  mem: {
    path: 'memory',
    operation: getMemory,
    below: async (id, options) => `${(await getMemory(api, { memory_id: id }, options)).memory_store_id}/${id}`,
  },
  pbk_exec: {
    path: 'cases',
    operation: getPlaybookExecution,
    below: async (id, options) =>
      `${(await getPlaybookExecution(api, { execution_id: id }, options)).case_id}/executions/${id}`,
  },
  trg_fire: {
    path: 'triggers',
    operation: getTriggerFiring,
    below: async (id, options) =>
      `${(await getTriggerFiring(api, { firing_id: id }, options)).trigger_id}/firings/${id}`,
  },
  whd: {
    path: 'webhooks',
    operation: getWebhookDelivery,
    below: async (id, options) =>
      `${(await getWebhookDelivery(api, { delivery_id: id }, options)).webhook_id}/deliveries/${id}`,
  },
}

type Entry = {
  /** Unique among the entries. */
  to: string
  name: string
  kind: string
  /** What distinguishes it from others with its name. */
  note?: string
  icon: TablerIcon
}

/** Returns the views of a project and the other projects whose names contain a text. */
function useNamed(projectId: string | undefined, search: string): Entry[] {
  const { data } = useProjects()
  const isAllowed = usePermissions(projectId)
  const views = (projectId ? NAVIGATION.filter(view => maySee(view, isAllowed)) : []).map(({ name, path, icon }) => ({
    to: `/p/${projectId}/${path}`,
    name,
    kind: texts.kinds.view,
    icon,
  }))
  const projects = (data?.data ?? [])
    // The open project is its views.
    .filter(({ id }) => id !== projectId)
    .map(({ id, name }) => ({ to: `/p/${id}/start`, name, kind: texts.kinds.project, icon: IconFolder }))
  return [...views, ...projects].filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()))
}

/** Returns the view of the record that a pasted ID names, if the user may see it. */
function useRecordOfId(projectId: string | undefined, search: string): { entries: Entry[]; isSearching: boolean } {
  const isAllowed = usePermissions(projectId)
  const at = search.lastIndexOf('_')
  const prefix = search.length - at - 1 === ID_LENGTH ? search.slice(0, at) : undefined
  const nested = prefix === undefined ? undefined : NESTED[prefix]
  const path = nested?.path ?? Object.values(RECORD_VIEWS).find(each => each.prefix === prefix)?.path
  const view = NAVIGATION.find(each => each.path === path)
  const isOffered = Boolean(projectId && view && maySee(view, isAllowed) && (!nested || isAllowed(nested.operation)))
  const read = useQuery({
    queryKey: ['palette', 'id', search],
    queryFn: async ({ signal }) => nested?.below(search, { signal }),
    enabled: isOffered && nested !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  })
  const below = nested ? read.data : search
  const entries =
    isOffered && view && below
      ? [{ to: `/p/${projectId}/${path}/${below}`, name: search, kind: view.name, icon: IconHash }]
      : []
  return { entries, isSearching: read.isFetching }
}

/** Searches agents, end users and sessions of a project, of those kinds that the user may list. */
function useFound(projectId: string | undefined, search: string): { entries: Entry[]; isSearching: boolean } {
  const isAllowed = usePermissions(projectId)
  const [typed] = useDebouncedValue(search, TYPING_MS)
  const query = useQuery({
    queryKey: ['palette', projectId, typed],
    enabled: projectId !== undefined && typed.length > 1,
    queryFn: async ({ signal }): Promise<Entry[]> => {
      const bounds = { project_id: projectId as string, limit: FOUND }
      const [agents, actors, sessions] = await Promise.all([
        isAllowed(listAgents) ? listAgents(api, { ...bounds, name: typed }, { signal }).page() : null,
        isAllowed(listActors) ? listActors(api, { ...bounds, search: typed }, { signal }).page() : null,
        isAllowed(listSessions) ? listSessions(api, { ...bounds, name: typed }, { signal }).page() : null,
      ])
      const to = (path: string, id: string) => `/p/${projectId}/${path}/${id}`
      return [
        ...(actors?.data ?? []).map(({ id, name, external_id }) => ({
          to: to('actors', id),
          name,
          kind: texts.kinds.actor,
          note: external_id ?? undefined,
          icon: IconUserCircle,
        })),
        ...(agents?.data ?? []).map(({ id, name }) => ({
          to: to('agents', id),
          name: name ?? strings.agents.unnamed,
          kind: texts.kinds.agent,
          icon: IconRobot,
        })),
        ...(sessions?.data ?? []).map(({ id, name, actor_name }) => ({
          to: to('sessions', id),
          name: name ?? strings.sessions.unnamed,
          kind: texts.kinds.session,
          note: actor_name ?? undefined,
          icon: IconMessages,
        })),
      ]
    },
  })
  const isCurrent = typed === search
  return {
    entries: isCurrent ? (query.data ?? []) : [],
    isSearching: projectId !== undefined && search.length > 1 && (!isCurrent || query.isFetching),
  }
}

/** Opens a view, a project, or a record of the project by its name or ID. */
export function CommandPalette({
  projectId,
  isOpen,
  onClose,
}: {
  projectId?: string
  isOpen: boolean
  onClose: () => void
}) {
  const [typed, setTyped] = useState('')
  const search = typed.trim()
  const navigate = useNavigate()
  const combobox = useCombobox({ opened: true })
  const options = useRef<HTMLDivElement>(null)
  const found = useFound(projectId, search)
  const ofId = useRecordOfId(projectId, search)
  const entries = [...ofId.entries, ...useNamed(projectId, search), ...found.entries].filter(
    ({ to }, index, all) => all.findIndex(each => each.to === to) === index,
  )
  const shown = entries.map(({ to }) => to).join()
  // Another text marks its first entry.
  useEffect(() => void combobox.selectFirstOption(), [search, isOpen])
  // Entries that are found later do not move the mark.
  useEffect(() => {
    if (options.current?.querySelector('[data-combobox-selected]')) combobox.updateSelectedOptionIndex('selected')
    else combobox.selectFirstOption()
  }, [shown])
  const close = () => {
    setTyped('')
    onClose()
  }
  return (
    <Modal opened={isOpen} onClose={close} title={texts.title} yOffset="12vh" centered={false}>
      <Combobox
        store={combobox}
        onOptionSubmit={to => {
          close()
          void navigate({ to })
        }}
      >
        <Combobox.Search
          value={typed}
          onChange={event => setTyped(event.currentTarget.value)}
          placeholder={texts.hint}
          aria-label={texts.hint}
          data-autofocus
        />
        <Combobox.Options mah={360} mt="sm" style={{ overflowY: 'auto' }} aria-label={texts.title} ref={options}>
          {entries.map(({ name, to, kind, note, icon: Icon }) => (
            <Combobox.Option value={to} key={to}>
              <Group gap="sm" wrap="nowrap">
                <Icon size={18} stroke={1.7} aria-hidden />
                <Text size="sm" truncate flex={1}>
                  {visible(name)}
                </Text>
                <Text size="xs" c="dimmed" truncate>
                  {note === undefined ? kind : `${kind} · ${visible(note)}`}
                </Text>
              </Group>
            </Combobox.Option>
          ))}
          {entries.length === 0 && (
            <Combobox.Empty>
              {found.isSearching || ofId.isSearching ? texts.searching : strings.nothingFound}
            </Combobox.Empty>
          )}
        </Combobox.Options>
      </Combobox>
    </Modal>
  )
}
