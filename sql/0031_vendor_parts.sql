-- Parts that a vendor requires back with the calls of a step until its turn ends, such as signed reasoning; changes of the
-- request of a step for its vendor.
alter table generation_steps add column vendor_parts jsonb, add column notes jsonb;
