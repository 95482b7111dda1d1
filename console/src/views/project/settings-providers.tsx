import fields from 'fields:updateAiProvider'
import { Badge, Group, Stack, Text } from '@mantine/core'
import type { AiProvider } from '@muster/client'
import {
  checkAiProvider,
  createAiProvider,
  deleteAiProvider,
  getEmbeddingConfig,
  listAiProviders,
  updateAiProvider,
} from '@muster/client/operations'
import { IconPlugConnected, IconPlus } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '#components/actions.tsx'
import { type Column, ListView, useList } from '#components/list.tsx'
import { ProviderForm } from '#components/provider-form.tsx'
import { Facts, Section } from '#components/record.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { type Permissions, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.settings

const aiProviderColumns = (isAllowed: Permissions, key: unknown[]): Column<AiProvider>[] => [
  {
    title: texts.provider,
    isWide: true,
    cell: ({ name, provider, base_url }) => (
      <>
        <Text fw={600}>{visible(name)}</Text>
        <Text size="sm" c="dimmed">
          {provider} {base_url && visible(base_url)}
        </Text>
      </>
    ),
  },
  {
    title: strings.agents.model,
    cell: ({ default_model }) => <span className="mono">{visible(default_model)}</span>,
  },
  {
    title: strings.actions,
    cell: provider => (
      <RowActions>
        {isAllowed(checkAiProvider) && <Check providerId={provider.id} />}
        {isAllowed(updateAiProvider) && (
          <FormButton
            label={strings.edit}
            size="xs"
            variant="default"
            form={close => <ProviderEdit provider={provider} onDone={close} />}
          />
        )}
        {isAllowed(deleteAiProvider) && (
          <ActionButton
            label={strings.remove}
            color="red"
            question={texts.deleteProvider(visible(provider.name))}
            run={async () => deleteAiProvider(api, { ai_provider_id: provider.id })}
            stale={[key]}
          />
        )}
      </RowActions>
    ),
  },
]

/** Model providers of the project with a check of each, and the embedding model of the deployment. */
export function ProviderSettings() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const key = ['providers', projectId]
  const list = useList<AiProvider>(key, async (_, bounds, signal) =>
    listAiProviders(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns = aiProviderColumns(isAllowed, key)
  const create = isAllowed(createAiProvider) && (
    <FormButton
      label={strings.provider.title}
      leftSection={<IconPlus size={16} />}
      form={close => <ProviderForm projectId={projectId} onDone={close} />}
    />
  )
  return (
    <Stack gap="lg">
      {create && <Group>{create}</Group>}
      <ListView
        label={texts.providers}
        list={list}
        operation={listAiProviders}
        columns={columns}
        empty={
          <Notice icon={<IconPlugConnected />} title={texts.noProvider} action={create} color="indigo">
            {strings.start.providerText}
          </Notice>
        }
      />
      {isAllowed(getEmbeddingConfig) && <Embeddings />}
    </Stack>
  )
}

/** Requests one token of a provider, and shows its answer in place. */
function Check({ providerId }: { providerId: string }) {
  const check = useAction({ run: async () => checkAiProvider(api, { ai_provider_id: providerId }) })
  return (
    <Group gap="xs">
      <ActionButton label={strings.start.test} run={() => check.mutateAsync()} />
      <span role="status">
        {check.data && (
          <Badge variant="dot" color={check.data.ok ? 'teal' : 'red'} title={check.data.error?.message}>
            {check.data.ok ? texts.answered(check.data.latency_ms) : texts.failed}
          </Badge>
        )}
      </span>
      {check.data?.error && (
        <Text size="sm" c="dimmed">
          {visible(check.data.error.message)}
        </Text>
      )}
    </Group>
  )
}

function ProviderEdit({ provider, onDone }: { provider: AiProvider; onDone: () => void }) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (values: Values) => updateAiProvider(api, { ai_provider_id: provider.id, ...values }),
    stale: [['providers', projectId]],
    onDone,
  })
  return (
    <SchemaForm
      schema={fields}
      initial={provider as Values}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Embeddings() {
  const config = useQuery({
    queryKey: ['embeddings'],
    queryFn: async ({ signal }) => getEmbeddingConfig(api, { partial: true }, { signal }),
  })
  return (
    <Section title={texts.embeddings}>
      <Text size="sm" c="dimmed">
        {texts.embeddingsText}
      </Text>
      <Loaded query={config} operation={getEmbeddingConfig} rows={1}>
        {({ configured, provider, model, dimensions, reindex }) =>
          configured ? (
            <Facts
              facts={[
                [texts.provider, provider],
                [
                  strings.agents.model,
                  <span className="mono" key="model">
                    {model && visible(model)}
                  </span>,
                ],
                [texts.dimensions, dimensions],
                [texts.pending, reindex.pending.toLocaleString()],
              ]}
            />
          ) : (
            <Text>{texts.noEmbeddings}</Text>
          )
        }
      </Loaded>
    </Section>
  )
}
