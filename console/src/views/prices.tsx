import deploymentFields from 'fields:putPrices.prices'
import projectFields from 'fields:putProjectPrices.prices'
import { Badge, Group, SegmentedControl, Stack, Text } from '@mantine/core'
import type { Price } from '@muster/client'
import {
  deletePrice,
  deleteProjectPrice,
  listPrices,
  listProjectPrices,
  putPrices,
  putProjectPrices,
} from '@muster/client/operations'
import { IconPlus, IconTags } from '@tabler/icons-react'
import { api } from '../api.ts'
import { ActionButton, FormButton, useAction } from '../components/actions.tsx'
import { useFilters } from '../components/filters.ts'
import { type Column, ListView, SearchField, useList } from '../components/list.tsx'
import { SchemaForm, type Values } from '../components/schema-form.tsx'
import { Notice } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

const texts = strings.prices
const PRICE = new Intl.NumberFormat(undefined, { style: 'currency', currency: 'USD', maximumFractionDigits: 9 })

/** Prices of the project, which take precedence, and of the deployment. A price never changes, a later one follows. */
export function Prices() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters, setFilters } = useFilters()
  const isGlobal = filters.of === 'deployment' && isAllowed('usage:GetPriceBook') === true
  const mayManage = isAllowed(isGlobal ? 'usage:ManagePriceBook' : 'projects:ManageProjectPrices')
  const key = ['prices', isGlobal ? null : projectId]
  const list = useList<Price>(key, async ({ model }, bounds, signal) =>
    isGlobal
      ? listPrices(api, { model, ...bounds }, { signal }).page()
      : listProjectPrices(api, { project_id: projectId, model, ...bounds }, { signal }).page(),
  )
  const columns: Column<Price>[] = [
    {
      title: texts.what,
      isWide: true,
      cell: ({ provider, model, component, resource }) => (
        <>
          <Text fw={600} size="sm">
            {visible(provider)} {visible(model)}
          </Text>
          <Text size="sm" c="dimmed">
            {visible(component)} {resource && visible(resource)}
          </Text>
        </>
      ),
    },
    {
      title: texts.price,
      cell: ({ unit_price, unit }) => (
        <>
          {PRICE.format(unit_price)}
          <Text size="sm" c="dimmed">
            {visible(unit)}
          </Text>
        </>
      ),
    },
    {
      title: texts.from,
      cell: ({ effective_from }) => (
        <Group gap={6}>
          <When at={effective_from} />
          {Date.parse(effective_from) > Date.now() && <Badge variant="light">{texts.future}</Badge>}
        </Group>
      ),
    },
    {
      title: texts.actions,
      cell: ({ id, effective_from }) =>
        Date.parse(effective_from) > Date.now() &&
        mayManage && (
          <ActionButton
            label={strings.remove}
            color="red"
            question={texts.deleteText}
            run={async () =>
              isGlobal
                ? deletePrice(api, { price_id: id })
                : deleteProjectPrice(api, { project_id: projectId, price_id: id })
            }
            stale={[key]}
          />
        ),
    },
  ]
  const create = isAllowed('projects:ManageProjectPrices') && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <PriceForm onDone={close} />}
    />
  )
  return (
    <Stack gap="lg">
      <Group justify="space-between" gap="sm">
        {create}
        {isAllowed('usage:GetPriceBook') && (
          <SegmentedControl
            aria-label={texts.of}
            value={isGlobal ? 'deployment' : 'project'}
            onChange={of => setFilters({ of: of === 'project' ? undefined : of })}
            data={[
              { value: 'project', label: texts.project },
              { value: 'deployment', label: texts.deployment },
            ]}
          />
        )}
      </Group>
      <ListView
        label={texts.title}
        list={list}
        action="projects:GetProjectPrices"
        columns={columns}
        choices={['of']}
        fields={<SearchField name="model" label={texts.model} />}
        empty={
          <Notice icon={<IconTags />} title={isGlobal ? texts.noPrices : texts.empty} action={create} color="indigo">
            {isGlobal ? texts.noPricesText : texts.emptyText}
          </Notice>
        }
      />
    </Stack>
  )
}

/** Adds a price to a project, or to the deployment. */
export function PriceForm({
  start,
  isGlobal = false,
  onDone,
}: {
  start?: Values
  isGlobal?: boolean
  onDone: () => void
}) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (values: Values) =>
      isGlobal
        ? putPrices(api, { prices: [values] } as unknown as Parameters<typeof putPrices>[1])
        : putProjectPrices(api, { project_id: projectId, prices: [values] } as unknown as Parameters<
            typeof putProjectPrices
          >[1]),
    stale: [['prices'], ['usage', projectId]],
    message: texts.saved,
    onDone,
  })
  return (
    <SchemaForm
      schema={isGlobal ? deploymentFields : projectFields}
      only={['provider', 'model', 'component', 'unit', 'unit_price', 'effective_from', 'meter_type', 'resource']}
      start={{ effective_from: new Date().toISOString(), ...start }}
      submitLabel={strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}
