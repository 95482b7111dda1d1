import entryFields from 'fields:createMemoryEntry'
import ruleFields from 'fields:createMemoryRule'
import testFields from 'fields:testMemoryRule'
import storeFields from 'fields:updateMemoryStore'
import { Anchor, Badge, Checkbox, Group, Stack, Switch, Text } from '@mantine/core'
import type {
  Memory,
  MemoryEntry,
  MemoryEntryDryRun,
  MemoryEntryInput,
  MemoryRule,
  MemoryRuleInput,
  MemoryStore,
  MemoryStorePatch,
} from '@muster/client'
import {
  createMemoryEntry,
  createMemoryRule,
  deleteMemoryRule,
  deleteMemoryStore,
  exportMemoryStore,
  getMemoryStore,
  listMemories,
  listMemoryEntries,
  listMemoryRules,
  replaceMemoryStoreTags,
  testMemoryRule,
  updateMemoryRule,
  updateMemoryStore,
} from '@muster/client/operations'
import { IconBulb, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useActors } from '#choices.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { useFilters } from '#components/filters.ts'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { saveAs } from '#components/save.ts'
import { SchemaForm, SubmitRow, type Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.memory

const storeKey = (id: string) => ['memory-store', id]

/** Whether a fact holds. */
export const isCurrent = ({ invalidated_at }: Memory): boolean =>
  invalidated_at === null || Date.parse(invalidated_at) > Date.now()

/** Since when a fact holds, and until when it did. */
export function Validity({ memory }: { memory: Memory }) {
  return (
    <Group gap={6}>
      <Badge variant="default">
        {isCurrent(memory) ? texts.holds : memory.superseded_by_memory_id ? texts.superseded : texts.invalid}
      </Badge>
      <Text size="sm" component="div">
        <When at={memory.created_at} />
        {!isCurrent(memory) && (
          <>
            {' – '}
            <When at={memory.invalidated_at} />
          </>
        )}
      </Text>
    </Group>
  )
}

/** A memory store: its facts, its ledger and its rules. */
export function MemoryStoreView() {
  const { storeId } = useIds()
  return (
    <RecordPage queryKey={storeKey(storeId)} get={getMemoryStore} ids={{ memory_store_id: storeId }}>
      {record => <StorePage store={record} />}
    </RecordPage>
  )
}

function StorePage({ store }: { store: MemoryStore }) {
  const isAllowed = usePermissions(store.project_id)
  return (
    <Page
      title={store.name}
      intro={store.description && visible(store.description)}
      actions={isAllowed(createMemoryEntry) && <AddButton store={store} />}
    >
      <AddressTabs
        tabs={[
          { value: 'facts', title: texts.facts, content: () => <FactList store={store} /> },
          { value: 'ledger', title: texts.ledger, content: () => <Ledger storeId={store.id} /> },
          { value: 'rules', title: texts.rules, content: () => <Rules store={store} /> },
          { value: 'record', title: strings.record, content: () => <StoreRecord store={store} /> },
        ]}
      />
    </Page>
  )
}

function AddButton({ store }: { store: MemoryStore }) {
  return (
    <FormButton
      label={texts.add}
      leftSection={<IconPlus size={16} />}
      form={close => <FactForm store={store} onDone={close} />}
    />
  )
}

type Verdict = Pick<MemoryEntry, 'action' | 'memory_id' | 'superseded_memory_id' | 'similarity'>

/** Writes a fact, after it has shown what the write would do. */
function FactForm({ store, onDone }: { store: MemoryStore; onDone: () => void }) {
  const [values, setValues] = useState<Values>()
  const [checked, setChecked] = useState<{ input: MemoryEntryInput; verdict: Verdict }>()
  const check = useAction({
    run: async (entered: Values) => {
      const input = { ...entered, memory_store_id: store.id, project_id: store.project_id } as MemoryEntryInput
      const verdict = (await createMemoryEntry(api, { ...input, dry_run: true })) as MemoryEntryDryRun
      return { input, verdict }
    },
    onDone: setChecked,
  })
  const write = useAction({
    run: async (input: MemoryEntryInput) => createMemoryEntry(api, input),
    stale: [['memories', store.id], ['memory-entries'], storeKey(store.id), ['memory-stores', store.project_id]],
    message: texts.written,
    onDone,
  })
  if (checked) {
    const { input, verdict } = checked
    return (
      <form
        onSubmit={event => {
          event.preventDefault()
          write.mutate(input)
        }}
      >
        <Stack gap="md">
          <Text className="wrap">{visible(input.content)}</Text>
          <Outcome verdict={verdict} storeId={store.id} />
          <SubmitRow
            label={texts.write}
            isPending={write.isPending}
            error={write.error}
            cancelLabel={texts.back}
            onCancel={() => setChecked(undefined)}
          />
        </Stack>
      </form>
    )
  }
  return (
    <SchemaForm
      schema={entryFields}
      only={['content', 'actor_id', 'supersedes', 'expires_at', 'metadata']}
      start={values}
      submitLabel={texts.check}
      isPending={check.isPending}
      error={check.error}
      onSubmit={entered => {
        setValues(entered)
        check.mutate(entered)
      }}
      onCancel={onDone}
    />
  )
}

/** What the write of a fact does. */
function Outcome({ verdict, storeId }: { verdict: Verdict; storeId: string }) {
  const projectId = useProjectId()
  const { action, memory_id, superseded_memory_id, similarity } = verdict
  const other = superseded_memory_id ?? (action === 'skipped' ? memory_id : null)
  return (
    <Stack gap={4} role="status">
      <Text fw={600}>{texts.outcomes[action]}</Text>
      {other && (
        <Text size="sm" component="div">
          {texts.compared}{' '}
          <Anchor component={Link} to={`/p/${projectId}/memory/${storeId}/${other}`} underline="always">
            {other}
          </Anchor>
          {similarity !== null && `, ${strings.search.similarity(similarity).toLowerCase()}`}
        </Text>
      )}
    </Stack>
  )
}

const memoryColumns = (projectId: string, store: MemoryStore, nameOf: (id: string) => string): Column<Memory>[] => [
  {
    title: texts.fact,
    isWide: true,
    cell: ({ id, content }) => (
      <RecordLink to={`/p/${projectId}/memory/${store.id}/${id}`}>{visible(content.slice(0, 400))}</RecordLink>
    ),
  },
  { title: texts.actor, cell: ({ actor_id }) => (actor_id ? nameOf(actor_id) : texts.everybody) },
  { title: texts.validity, cell: memory => <Validity memory={memory} /> },
]

function FactList({ store }: { store: MemoryStore }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { choices: actors, nameOf } = useActors(store.project_id)
  const { filters, setFilters } = useFilters()
  const list = useList<Memory>(['memories', store.id], async ({ q, actor, all }, bounds, signal) => {
    const args = {
      memory_store_id: store.id,
      project_id: projectId,
      query: q,
      // An empty ID selects facts without an end user.
      ...(actor ? { actor_id: actor === 'none' ? '' : actor } : {}),
      ...(all ? { include_invalidated: true } : {}),
      ...bounds,
    }
    return listMemories(api, args, { signal }).page()
  })
  const columns = memoryColumns(projectId, store, nameOf)
  return (
    <ListView
      label={texts.facts}
      list={list}
      operation={listMemories}
      columns={columns}
      fields={
        <>
          <SearchField label={texts.search} />
          {actors && (
            <ChoiceField
              name="actor"
              label={texts.actor}
              choices={[{ value: 'none', label: texts.everybody }, ...actors]}
            />
          )}
          <Checkbox
            label={texts.showInvalid}
            checked={filters.all === 'true'}
            onChange={event => setFilters({ all: event.currentTarget.checked ? 'true' : undefined })}
          />
        </>
      }
      empty={
        <Notice
          icon={<IconBulb />}
          title={texts.emptyFacts}
          color="indigo"
          action={isAllowed(createMemoryEntry) && <AddButton store={store} />}
        >
          {texts.emptyFactsText}
        </Notice>
      }
    />
  )
}

/** The writes of facts of a store, or of one memory. */
export function Ledger({ storeId, memoryId }: { storeId: string; memoryId?: string }) {
  const projectId = useProjectId()
  const { nameOf } = useActors(useProjectId())
  const list = useList<MemoryEntry>(['memory-entries', storeId, memoryId], async (_, bounds, signal) => {
    const of = memoryId ? { memory_id: memoryId } : { memory_store_id: storeId }
    return listMemoryEntries(api, { project_id: projectId, ...of, ...bounds }, { signal }).page()
  })
  const columns: Column<MemoryEntry>[] = [
    {
      title: texts.fact,
      isWide: true,
      cell: ({ memory_id, content }) => {
        const text = visible(content.slice(0, 400))
        if (!memory_id || memory_id === memoryId) return <Text size="sm">{text}</Text>
        return <RecordLink to={`/p/${projectId}/memory/${storeId}/${memory_id}`}>{text}</RecordLink>
      },
    },
    {
      title: texts.outcome,
      cell: ({ action }) => <Badge variant="default">{texts.did[action]}</Badge>,
    },
    { title: texts.by, cell: ({ mechanism }) => texts.mechanisms[mechanism] },
    { title: texts.actor, cell: ({ actor_id }) => (actor_id ? nameOf(actor_id) : strings.none) },
    { title: texts.at, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  return (
    <ListView
      label={texts.ledger}
      list={list}
      operation={listMemoryEntries}
      columns={columns}
      empty={<Text c="dimmed">{texts.emptyLedger}</Text>}
    />
  )
}

function Rules({ store }: { store: MemoryStore }) {
  const isAllowed = usePermissions(store.project_id)
  const stale = [['memory-rules', store.id]]
  const list = useList<MemoryRule>(['memory-rules', store.id], async (_, bounds, signal) =>
    listMemoryRules(api, { project_id: store.project_id, memory_store_id: store.id, ...bounds }, { signal }).page(),
  )
  const toggle = useAction({
    run: async ({ id, enabled }: MemoryRule) => updateMemoryRule(api, { memory_rule_id: id, enabled: !enabled }),
    stale,
  })
  const mayUpdate = isAllowed(updateMemoryRule)
  const columns: Column<MemoryRule>[] = [
    {
      title: texts.rule,
      isWide: true,
      cell: rule => (
        <Stack gap={2}>
          <Text fw={600}>{texts.ruleOf(rule.tool_id !== null, rule.agent_id !== null)}</Text>
          <Text size="sm" c="dimmed" lineClamp={2}>
            {visible(rule.prompt ?? texts.defaultPrompt)}
          </Text>
          {rule.disabled_reason && <Text size="sm">{visible(rule.disabled_reason)}</Text>}
        </Stack>
      ),
    },
    { title: texts.on, cell: ({ on }) => texts.triggers[on] },
    {
      title: texts.enabled,
      cell: rule => (
        <Switch
          checked={rule.enabled}
          disabled={!mayUpdate || toggle.isPending}
          aria-label={texts.enableRule(rule.id)}
          onChange={() => toggle.mutate(rule)}
        />
      ),
    },
    {
      title: strings.actions,
      cell: rule => (
        <Group gap="xs">
          <FormButton
            label={texts.test}
            variant="default"
            size="xs"
            form={close => <RuleTest rule={rule} onCancel={close} />}
          />
          {mayUpdate && (
            <FormButton
              label={strings.edit}
              variant="default"
              size="xs"
              form={close => <RuleForm store={store} rule={rule} onDone={close} />}
            />
          )}
          {isAllowed(deleteMemoryRule) && (
            <ActionButton
              label={strings.remove}
              color="red"
              question={texts.deleteRuleText}
              run={async () => deleteMemoryRule(api, { memory_rule_id: rule.id })}
              stale={stale}
            />
          )}
        </Group>
      ),
    },
  ]
  const create = isAllowed(createMemoryRule) && (
    <FormButton
      label={texts.createRule}
      leftSection={<IconPlus size={16} />}
      form={close => <RuleForm store={store} onDone={close} />}
    />
  )
  return (
    <Stack gap="md">
      <ListView
        label={texts.rules}
        list={list}
        operation={listMemoryRules}
        columns={columns}
        empty={
          <Notice icon={<IconBulb />} title={texts.emptyRules} action={create} color="indigo">
            {texts.emptyRulesText}
          </Notice>
        }
      />
      {(list.query.data?.total ?? 0) > 0 && <Group>{create}</Group>}
    </Stack>
  )
}

function RuleForm({ store, rule, onDone }: { store: MemoryStore; rule?: MemoryRule; onDone: () => void }) {
  const save = useAction({
    run: async (values: Partial<MemoryRuleInput>) =>
      rule
        ? updateMemoryRule(api, { ...values, memory_rule_id: rule.id })
        : createMemoryRule(api, {
            on: 'conversation_messages.generated',
            ...values,
            memory_store_id: store.id,
            project_id: store.project_id,
          }),
    stale: [['memory-rules', store.id]],
    onDone,
  })
  return (
    <SchemaForm
      schema={ruleFields}
      omit={['project_id', 'memory_store_id']}
      initial={rule}
      submitLabel={rule ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

/** Shows which facts a rule would take from a turn. */
function RuleTest({ rule, onCancel }: { rule: MemoryRule; onCancel: () => void }) {
  const test = useAction({
    run: async (values: Values) =>
      testMemoryRule(api, { memory_rule_id: rule.id, generation_id: String(values.generation_id) }),
  })
  return (
    <Stack gap="md">
      <SchemaForm
        schema={testFields}
        submitLabel={texts.test}
        isPending={test.isPending}
        error={test.error}
        onSubmit={test.mutate}
        onCancel={onCancel}
      />
      {test.data && (
        <Stack gap="sm" role="status">
          <Text fw={600}>{texts.found(test.data.facts.length)}</Text>
          {test.data.facts.map(({ content, action, similarity }, index) => (
            <Text key={index} size="sm">
              {visible(content)}{' '}
              {[
                action && texts.outcomes[action as Verdict['action']],
                similarity !== null && strings.search.similarity(similarity),
              ]
                .filter(Boolean)
                .join(' ')}
            </Text>
          ))}
        </Stack>
      )}
    </Stack>
  )
}

function StoreRecord({ store }: { store: MemoryStore }) {
  const isAllowed = usePermissions(store.project_id)
  const stale = [storeKey(store.id), ['memory-stores', store.project_id]]
  return (
    <Section
      title={strings.record}
      actions={
        <>
          {isAllowed(listMemories) && (
            <ActionButton
              label={texts.exportStore}
              run={async () => {
                const args = { memory_store_id: store.id, include_invalidated: true }
                saveAs([await (await exportMemoryStore(api, args)).bytes()], `${store.name}.ndjson`)
              }}
            />
          )}
          {isAllowed(updateMemoryStore) && (
            <FormButton
              label={strings.edit}
              variant="default"
              size="xs"
              form={close => <StoreForm store={store} stale={stale} onDone={close} />}
            />
          )}
          <RemoveButton
            operation={deleteMemoryStore}
            ids={{ memory_store_id: store.id }}
            question={texts.deleteStoreText}
            stale={stale.slice(1)}
            list="memory"
            size="xs"
          />
        </>
      }
    >
      <Facts
        facts={[
          [texts.current, store.memory_count.toLocaleString()],
          [texts.duplicate, store.duplicate_threshold ?? strings.agents.defaultValue],
          [texts.supersede, store.supersede_threshold ?? strings.agents.defaultValue],
          [texts.limit, store.actor_memory_limit ?? strings.agents.defaultValue],
        ]}
      />
      <IdLine id={store.id} />
      <Group gap="sm">
        <Tags tags={store.tags} />
        {isAllowed(updateMemoryStore) && (
          <TagsButton
            tags={store.tags}
            save={async tags => replaceMemoryStoreTags(api, { ...tags, memory_store_id: store.id })}
            stale={stale}
          />
        )}
      </Group>
    </Section>
  )
}

function StoreForm({ store, stale, onDone }: { store: MemoryStore; stale: string[][]; onDone: () => void }) {
  const save = useAction({
    run: async (values: MemoryStorePatch) => updateMemoryStore(api, { ...values, memory_store_id: store.id }),
    stale,
    onDone,
  })
  return (
    <SchemaForm
      schema={storeFields}
      omit={['tags']}
      initial={store}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}
